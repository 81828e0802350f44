#include "context.h"

#include <cstdlib>

#include "testing/context_fixture.h"

namespace backplane::opencl {
namespace {

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
  ASSERT_TRUE(run(program, memory->get() + 4 * sizeof(float)).ok());
  float out[8];
  ASSERT_EQ(clEnqueueReadBuffer(context_->queue(), place_of(memory->get()).memory, CL_TRUE, 0,
                                sizeof out, out, 0, nullptr, nullptr),
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
  EXPECT_NE(message.find("  t[i] = no_such_function(t[i]);"), std::string::npos) << message;
  // Those that build are not lost with it.
  auto memory = context_->pool().take(64);
  ASSERT_TRUE(memory.ok());
  EXPECT_TRUE(run(good, (*memory)->address()).ok());
}

// What other programs, other drivers and full disks leave is built again.
TEST_F(ContextTest, ABinaryThatIsNotWholeIsBuiltAgain) {
  facts_.driver_caches = false;
  Context first(facts_);
  ASSERT_TRUE(first.open().ok());
  const auto named = add_one();
  first.program(named->text(), named->entry(), "first");
  ASSERT_TRUE(first.build_pending().ok());
  ASSERT_EQ(sdk::testing::host_cache().size(), 1U);
  const std::string whole = sdk::testing::host_cache().begin()->second;
  std::string flipped = whole;
  flipped[whole.size() / 2] ^= 1;
  for (const std::string& content :
       {std::string(), whole.substr(0, 4), whole.substr(0, whole.size() / 2), flipped,
        std::string("no binary of any driver"), whole + "more"}) {
    sdk::testing::host_cache().begin()->second = content;
    Context other(facts_);
    ASSERT_TRUE(other.open().ok());
    other.program(named->text(), named->entry(), "again");
    EXPECT_TRUE(other.build_pending().ok());
    const std::string& now = sdk::testing::host_cache().begin()->second;
    EXPECT_NE(now, content);
    // Drivers write names of files into a binary: its size is not the same each time.
    EXPECT_NEAR(static_cast<double>(now.size()), static_cast<double>(whole.size()),
                static_cast<double>(whole.size()) / 20);
  }
}

TEST_F(ContextTest, ABinaryWithOtherKernelsIsBuiltAgain) {
  facts_.driver_caches = false;
  Context first(facts_);
  ASSERT_TRUE(first.open().ok());
  const auto one = add_one(), two = add_one("t[i] + 2.0f");
  for (const auto& kernel : {one, two}) {
    first.program(kernel->text(), kernel->entry(), "alone");
    ASSERT_TRUE(first.build_pending().ok());
  }
  auto& cache = sdk::testing::host_cache();
  ASSERT_EQ(cache.size(), 2U);
  std::swap(cache.begin()->second, std::next(cache.begin())->second);
  Context other(facts_);
  ASSERT_TRUE(other.open().ok());
  auto program = other.program(one->text(), one->entry(), "again");
  ASSERT_TRUE(other.build_pending().ok());
  EXPECT_TRUE(static_cast<const ClProgram&>(*program).take().ok());
}

TEST_F(ContextTest, BinariesOfADriverThatKeepsThemAreNotReadBack) {
  facts_.driver_caches = true;
  Context first(facts_);
  ASSERT_TRUE(first.open().ok());
  const auto named = add_one();
  first.program(named->text(), named->entry(), "first");
  ASSERT_TRUE(first.build_pending().ok());
  EXPECT_TRUE(sdk::testing::host_cache().empty());
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
