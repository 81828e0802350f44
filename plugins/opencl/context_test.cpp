#include "context.h"

#include <gtest/gtest.h>
#include <backplane/kernelgen/kernel.hpp>
#include <backplane/sdk/testing.hpp>

#include <cstdlib>

#include "launch.h"

namespace backplane::opencl {
namespace {

class ContextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sdk::detail::g_host = &sdk::testing::fake_host_api();
    sdk::testing::fake_cache().clear();
    try {
      facts_ = find_devices().front();
    } catch (const std::exception& e) {
      GTEST_SKIP() << e.what();
    }
    context_ = std::make_unique<Context>(facts_);
    ASSERT_TRUE(context_->open().ok());
  }
  // Adds one to four floats.
  std::shared_ptr<const Program> add_one(const std::string& expression = "t[i] + 1.0f") {
    const kernelgen::Printed named = kernelgen::name_entry(
        "BP_KERNEL BP_ENTRY(BP_GLOBAL uchar* b, ulong o) {\n"
        "  BP_GLOBAL float* t = (BP_GLOBAL float*)(b + o);\n  int i = (int)get_global_id(0);\n"
        "  t[i] = " +
        expression + ";\n}\n");
    return context_->program(named.text, named.entry, "aten.add.Scalar (node 7)");
  }
  Status run(std::shared_ptr<const Program> program, std::byte* address) {
    LaunchList list;
    list.add({std::move(program), {Argument::operand(0)}, {4, 1, 1}, {1, 1, 1}, 0});
    Recorder recorder(*context_, context_->queue(), {});
    Recorder::current() = &recorder;
    std::byte* operands[] = {address};
    Status status = list.run({operands, nullptr, nullptr});
    Recorder::current() = nullptr;
    auto event = recorder.finish();
    if (event.ok()) {
      clWaitForEvents(1, &*event);
      clReleaseEvent(*event);
    }
    return status;
  }

  DeviceFacts facts_;
  std::unique_ptr<Context> context_;
};

TEST_F(ContextTest, ADeviceThatIsNotThereIsNamedWithThoseThatAre) {
  ::setenv("BACKPLANE_OPENCL_DEVICE", "no such device", 1);
  try {
    find_devices();
    ADD_FAILURE() << "found a device of that name";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("no such device"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find(facts_.name), std::string::npos);
  }
  ::unsetenv("BACKPLANE_OPENCL_DEVICE");
}

TEST_F(ContextTest, KernelsRunOnOffsetsAndOnHostMemory) {
  auto program = add_one();
  ASSERT_TRUE(context_->build_pending().ok());
  float data[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  auto memory = context_->constant(data, sizeof data);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(run(program, (*memory)->address() + 4 * sizeof(float)).ok());
  float out[8];
  ASSERT_EQ(clEnqueueReadBuffer(context_->queue(), (*memory)->get(), CL_TRUE, 0, sizeof out, out, 0,
                                nullptr, nullptr),
            CL_SUCCESS);
  EXPECT_EQ(out[3], 3);
  EXPECT_EQ(out[7], 8);
  if (!facts_.binds_host_memory) return;
  auto wrapped = context_->wrap_host(data, sizeof data);
  ASSERT_TRUE(wrapped.ok());
  ASSERT_TRUE(run(program, (*wrapped)->address()).ok());
  EXPECT_EQ(data[0], 1);
}

TEST_F(ContextTest, ABuildFailureNamesTheNodeAndTheLine) {
  auto good = add_one();
  add_one("no_such_function(t[i])");
  Status status = context_->build_pending();
  ASSERT_FALSE(status.ok());
  const std::string message(status.message());
  EXPECT_NE(message.find("aten.add.Scalar (node 7)"), std::string::npos) << message;
  EXPECT_NE(message.find("no_such_function"), std::string::npos) << message;
  // Those that build are not lost with it.
  auto memory = context_->pool().take(64);
  ASSERT_TRUE(memory.ok());
  EXPECT_TRUE(run(good, (*memory)->address()).ok());
}

TEST_F(ContextTest, ATornCacheEntryIsBuiltAgain) {
  add_one();
  ASSERT_TRUE(context_->build_pending().ok());
  ASSERT_EQ(sdk::testing::fake_cache().size(), 1U);
  sdk::testing::fake_cache().begin()->second.resize(10);
  Context other(facts_);
  ASSERT_TRUE(other.open().ok());
  const auto named = add_one();
  other.program(named->text(), "bp_0", "again");
  EXPECT_TRUE(other.build_pending().ok());
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

TEST_F(ContextTest, AddressesLeadBackToTheirBuffers) {
  auto a = context_->pool().take(100), b = context_->pool().take(100);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_TRUE(is_device_address((*a)->address()));
  EXPECT_FALSE(is_device_address(&a));
  EXPECT_EQ(place_of((*b)->address() + 24).memory, (*b)->get());
  EXPECT_EQ(place_of((*b)->address() + 24).offset, 24U);
}

}  // namespace
}  // namespace backplane::opencl
