#include "context.h"

#include "streams.h"
#include "testing/context_fixture.h"

namespace backplane::cuda {
namespace {

std::string refusal() {
  try {
    find_devices();
    return {};
  } catch (const std::exception& e) {
    return e.what();
  }
}

// Each in a process of its own: libraries are opened once.
class MissingTest : public ContextTest {
 protected:
  void SetUp() override {}
};

TEST_F(MissingTest, NoDriver) {
  ::setenv("BACKPLANE_CUDA_DRIVER", "/nonexistent/libcuda.so.1", 1);
  EXPECT_EQ(refusal().find("no device: no NVIDIA driver (/nonexistent/libcuda.so.1"), 0U)
      << refusal();
}
TEST_F(MissingTest, AnOldDriver) {
  use_emulated_driver();
  ::setenv("BACKPLANE_EMULATED_CUDA_VERSION", "11040", 1);
  EXPECT_NE(refusal().find("speaks CUDA 11.4; 11.8 or newer"), std::string::npos) << refusal();
}
TEST_F(MissingTest, ADriverThatDoesNotStart) {
  use_emulated_driver();
  plan("cuInit:999:0:-1");
  EXPECT_NE(refusal().find("cuInit failed with CUDA error 999"), std::string::npos) << refusal();
}
TEST_F(MissingTest, ADriverWithoutADevice) {
  use_emulated_driver();
  ::setenv("BACKPLANE_EMULATED_CUDA_DEVICES", "0", 1);
  EXPECT_NE(refusal().find("no CUDA-capable device is detected"), std::string::npos) << refusal();
}
TEST_F(MissingTest, NoNvrtc) {
  use_emulated_driver();
  ::setenv("BACKPLANE_CUDA_NVRTC", "/nonexistent/libnvrtc.so.13", 1);
  EXPECT_NE(refusal().find("install nvidia-cuda-nvrtc with pip"), std::string::npos) << refusal();
}
TEST_F(MissingTest, AnNvrtcThatIsNewerThanTheDriver) {
  use_emulated_driver();
  ::setenv("BACKPLANE_EMULATED_CUDA_VERSION", "12080", 1);
  EXPECT_NE(refusal().find("is of CUDA 13, the driver of 12"), std::string::npos) << refusal();
}
TEST_F(MissingTest, ALimitThatIsNoNumber) {
  use_emulated_driver();
  ::setenv("BACKPLANE_CUDA_MEMORY", "much", 1);
  EXPECT_NE(refusal().find("BACKPLANE_CUDA_MEMORY=much"), std::string::npos) << refusal();
}

TEST_F(ContextTest, KernelsRunOnOffsets) {
  auto program = add_one(*context_);
  ASSERT_TRUE(context_->build_pending().ok());
  float data[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  auto memory = context_->constant(data, sizeof data);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(run(program, memory->get() + 4 * sizeof(float)).ok());
  float out[8];
  ASSERT_TRUE(read(memory->get(), out, sizeof out).ok());
  EXPECT_EQ(out[3], 3);
  EXPECT_EQ(out[7], 8);
}

TEST_F(ContextTest, ABuildFailureNamesTheNodeAndTheLine) {
  auto good = add_one(*context_);
  add_one(*context_, "no_such_function(t[i])");
  Status status = context_->build_pending();
  ASSERT_FALSE(status.ok());
  const std::string message(status.message());
  EXPECT_NE(message.find("aten.add.Scalar (node 7)"), std::string::npos) << message;
  EXPECT_NE(message.find("  t[i] = no_such_function(t[i]);"), std::string::npos) << message;
  // Those that build are not lost with it.
  auto memory = context_->pool().take(64);
  ASSERT_TRUE(memory.ok());
  EXPECT_TRUE(run(good, (*memory)->address()).ok());
}

// What other drivers and full disks leave is built again.
TEST_F(ContextTest, ABinaryThatIsNotWholeIsBuiltAgain) {
  add_one(*context_);
  ASSERT_TRUE(context_->build_pending().ok());
  ASSERT_EQ(sdk::testing::host_cache().size(), 1U);
  const std::string whole = sdk::testing::host_cache().begin()->second;
  for (const std::string& content :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("no machine code")}) {
    sdk::testing::host_cache().begin()->second = content;
    Context other(facts_);
    ASSERT_TRUE(other.open().ok());
    auto program = add_one(other);
    EXPECT_TRUE(other.build_pending().ok());
    EXPECT_TRUE(program->function().ok());
    EXPECT_NE(sdk::testing::host_cache().begin()->second, content);
  }
}

TEST_F(ContextTest, AWarmStartBuildsNothing) {
  add_one(*context_);
  ASSERT_TRUE(context_->build_pending().ok());
  plan("nvrtcCreateProgram:1:0:-1");
  Context other(facts_);
  ASSERT_TRUE(other.open().ok());
  auto program = add_one(other);
  EXPECT_TRUE(other.build_pending().ok());
  EXPECT_TRUE(program->function().ok());
}

TEST_F(ContextTest, MemoryIsLimitedAndKeptBuffersGiveWay) {
  Pool pool(context_->get(), 1 << 20);
  auto first = pool.take(600 << 10);
  ASSERT_TRUE(first.ok());
  auto second = pool.take(600 << 10);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), bp_code{BP_OUT_OF_MEMORY});
  pool.give(std::move(*first));
  EXPECT_EQ(pool.live_bytes(), 0U);
  EXPECT_TRUE(pool.take(900 << 10).ok());  // the kept buffer of another size is let go
}

TEST_F(ContextTest, AnEventIsCompleteUntilItIsRecorded) {
  std::shared_ptr<Context> shared(std::move(context_));
  const Current current(shared->get());
  EventHandle handle = nullptr;
  ASSERT_EQ(driver().cuEventCreate(&handle, kEventWithoutTiming), kSuccess);
  CudaEvent event(shared, handle);
  bool done = false;
  EXPECT_TRUE(event.query(done).ok());
  EXPECT_TRUE(done);
  EXPECT_TRUE(event.record(shared->stream(), {}).ok());
  EXPECT_TRUE(event.wait(UINT64_MAX).ok());
}

TEST_F(ContextTest, ALaunchWithoutMemoryIsMadeOnceMore) {
  auto program = add_one(*context_);
  ASSERT_TRUE(context_->build_pending().ok());
  auto memory = context_->pool().take(64);
  ASSERT_TRUE(memory.ok());
  context_->pool().give(std::move(*context_->pool().take(1 << 20)));
  ASSERT_EQ(context_->pool().kept_bytes(), 1U << 20);
  plan("cuLaunchKernel:2:0:1");
  EXPECT_TRUE(run(program, (*memory)->address()).ok());
  EXPECT_EQ(context_->pool().kept_bytes(), 0U);
  plan("cuLaunchKernel:2:0:2");
  const Status status = run(program, (*memory)->address());
  EXPECT_EQ(status.code(), bp_code{BP_OUT_OF_MEMORY});
  EXPECT_NE(std::string(status.message()).find("aten.add.Scalar (node 7)"), std::string::npos);
  EXPECT_TRUE(run(program, (*memory)->address()).ok());  // the next finds some
  EXPECT_TRUE(context_->check().ok());
}

TEST_F(ContextTest, AnIllegalAccessLosesTheDeviceAndNamesTheNode) {
  auto program = add_one(*context_);
  ASSERT_TRUE(context_->build_pending().ok());
  auto memory = context_->pool().take(64);
  ASSERT_TRUE(memory.ok());
  plan("cuLaunchKernel:700:0:1");
  const Status status = run(program, (*memory)->address());
  EXPECT_EQ(status.code(), bp_code{BP_DEVICE_LOST});
  EXPECT_NE(std::string(status.message()).find("aten.add.Scalar (node 7)"), std::string::npos);
  EXPECT_NE(std::string(status.message()).find("illegal memory access"), std::string::npos);
  EXPECT_EQ(context_->check().code(), bp_code{BP_DEVICE_LOST});
}

}  // namespace
}  // namespace backplane::cuda
