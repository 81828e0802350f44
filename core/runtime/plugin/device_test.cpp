#include "core/runtime/plugin/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "core/runtime/host/process_state.h"
#include "core/runtime/plugin/plugin.h"
#include "core/runtime/testing/files.h"

namespace backplane::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_files::testing_plugin;

constexpr std::uint64_t kDeviceBytes = 1 << 20;  // of the test plugin

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { open("good"); }
  void open(const std::string& name) {
    Result<std::unique_ptr<Plugin>> plugin = Plugin::load(testing_plugin(name));
    ASSERT_TRUE(plugin.ok()) << plugin.status().message();
    device_ = nullptr;
    plugin_ = std::move(*plugin);
    Result<Device*> device = plugin_->device(0);
    ASSERT_TRUE(device.ok()) << device.status().message();
    device_ = *device;
  }
  DeviceBuffer allocate(std::uint64_t bytes) {
    Result<DeviceBuffer> buffer = device_->allocate(bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status().message();
    return buffer.ok() ? std::move(*buffer) : DeviceBuffer();
  }

  std::unique_ptr<Plugin> plugin_;
  Device* device_ = nullptr;
};

TEST_F(DeviceTest, DescribesItself) {
  EXPECT_EQ(device_->label(), "good:0");
  EXPECT_EQ(device_->info().memory_bytes, kDeviceBytes);
  EXPECT_EQ(device_->alignment_bytes(), 16u);
  EXPECT_FALSE(device_->has_streams());
  EXPECT_FALSE(device_->binds_host_memory());
  const Result<bp_stream*> stream = device_->create_stream();
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ(*stream, nullptr);
  EXPECT_TRUE(device_->wait(nullptr).ok());
  EXPECT_FALSE(device_->lock_call().owns_lock());
}

TEST_F(DeviceTest, ABufferThatIsInUseIsRefused) {
  ::setenv("BACKPLANE_SABOTAGE", "buffer_create again", 1);
  open("sabotage");
  {
    const DeviceBuffer first = allocate(64);
    const Result<DeviceBuffer> second = device_->allocate(64);
    ASSERT_FALSE(second.ok());
    EXPECT_THAT(second.status().message(),
                AllOf(HasSubstr("sabotage:0: buffer_create of 64 bytes"), HasSubstr("in use")));
    EXPECT_EQ(device_->counters().live_bytes, 64u);
  }
  EXPECT_TRUE(device_->allocate(64).ok());  // the first was released once, and is in use no more
  ::unsetenv("BACKPLANE_SABOTAGE");
}

TEST_F(DeviceTest, CountsMemoryAndCopies) {
  CopyCounters& counters = device_->counters();
  {
    const DeviceBuffer a = allocate(1000);
    const DeviceBuffer b = allocate(500);
    EXPECT_EQ(counters.live_bytes, 1500u);
    std::array<char, 64> host{};
    const bp_range in_a{a.get(), nullptr, 0, host.size()};
    const bp_range in_b{b.get(), nullptr, 100, host.size()};
    host.fill('y');
    ASSERT_TRUE(device_->copy_to_device(host.data(), in_a, CopyCause::kWeight).ok());
    ASSERT_TRUE(device_->copy_on_device(in_a, in_b).ok());
    std::array<char, 64> back{};
    ASSERT_TRUE(device_->copy_from_device(in_b, back.data(), CopyCause::kOutput).ok());
    EXPECT_EQ(back, host);
    ASSERT_TRUE(device_->copy_to_device(nullptr, {a.get(), nullptr, 0, 0}, CopyCause::kInput).ok());
  }
  const auto at = [](CopyCause cause) { return static_cast<std::size_t>(cause); };
  EXPECT_EQ(counters.to_device_bytes[at(CopyCause::kWeight)], 64u);
  EXPECT_EQ(counters.to_device_count[at(CopyCause::kWeight)], 1u);
  EXPECT_EQ(counters.to_device_count[at(CopyCause::kInput)], 0u);
  EXPECT_EQ(counters.from_device_bytes[at(CopyCause::kOutput)], 64u);
  EXPECT_EQ(counters.live_bytes, 0u);
  EXPECT_EQ(counters.peak_bytes, 1500u);
  counters.reset();
  EXPECT_EQ(counters.to_device_bytes[at(CopyCause::kWeight)], 0u);
  EXPECT_EQ(counters.peak_bytes, 0u);
}

TEST_F(DeviceTest, BuffersMove) {
  DeviceBuffer a = allocate(100);
  bp_buffer* const handle = a.get();
  DeviceBuffer b(std::move(a));
  EXPECT_EQ(b.get(), handle);
  DeviceBuffer c = allocate(50);
  c = std::move(b);
  EXPECT_EQ(c.get(), handle);
  EXPECT_EQ(device_->counters().live_bytes, 100u);
  EXPECT_FALSE(allocate(0));
}

TEST_F(DeviceTest, RefusalsNameDeviceAndCall) {
  const DeviceBuffer buffer = allocate(100);
  std::array<char, 64> host{};
  const bp_range beyond{buffer.get(), nullptr, 90, host.size()};
  const Status status = device_->copy_to_device(host.data(), beyond, CopyCause::kInput);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("good:0: copy of 64 bytes failed: the range leaves its buffer (at "
                        "good_plugin.c:"));
  EXPECT_EQ(device_->counters().to_device_count[0], 0u);
  const bp_range sizes_differ{buffer.get(), nullptr, 0, 10};
  EXPECT_FALSE(device_->copy_on_device(sizes_differ, beyond).ok());
}

TEST_F(DeviceTest, OutOfMemoryIsTriedAgainAfterTheCachesGaveWay) {
  DeviceBuffer cached = allocate(kDeviceBytes / 2);
  const Result<DeviceBuffer> refused = device_->allocate(kDeviceBytes);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kOutOfMemory);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("good:0: buffer_create of 1048576 bytes failed: the device is full"));
  device_->add_trim_hook(
      [](Device*, void* user) { *static_cast<DeviceBuffer*>(user) = DeviceBuffer(); }, &cached);
  const DeviceBuffer granted = allocate(kDeviceBytes);
  EXPECT_TRUE(granted);
  EXPECT_FALSE(cached);
}

TEST_F(DeviceTest, WhoIsGoneIsNotAskedToTrim) {
  int calls = 0;
  auto owner = std::make_shared<int*>(&calls);
  device_->add_trim_hook([](Device*, void* user) { ++**static_cast<int**>(user); },
                         std::weak_ptr<void>(owner));
  device_->trim();
  EXPECT_EQ(calls, 1);
  owner.reset();
  device_->trim();
  EXPECT_EQ(calls, 1);
}

TEST_F(DeviceTest, AForeignErrorPointerIsAnInternalError) {
  open("broken_foreign_error");
  const DeviceBuffer buffer = allocate(64);
  char host[64] = {};
  const Status status =
      device_->copy_to_device(host, {buffer.get(), nullptr, 0, 64}, CopyCause::kInput);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("not made by the host"));
}

TEST_F(DeviceTest, RestoresTheFloatingPointStateAfterACall) {
  open("broken_leaves_ftz_in_copy");
  const FpControl before = read_fp_control();
  const DeviceBuffer buffer = allocate(64);
  char host[64] = {};
  EXPECT_TRUE(
      device_->copy_to_device(host, {buffer.get(), nullptr, 0, 64}, CopyCause::kInput).ok());
  EXPECT_EQ(read_fp_control(), before);
}

}  // namespace
}  // namespace backplane::runtime
