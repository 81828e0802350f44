// Calls of the driver that fail, through a layer of the OpenCL loader.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <future>

#include "testing/context_fixture.h"

namespace backplane::opencl {
namespace {

// The loader reads the variable when it is loaded, before anything of this program runs.
__attribute__((constructor)) void start_under_the_layer(int, char** arguments) {
  if (std::getenv("OPENCL_LAYERS") != nullptr) return;
  ::setenv("OPENCL_LAYERS", BACKPLANE_OPENCL_FAULT_LAYER, 1);
  ::execv("/proc/self/exe", arguments);
}

class FailureTest : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    if (IsSkipped()) return;
    program_ = add_one();
    ASSERT_TRUE(context_->build_pending().ok());
    auto memory = context_->pool().take(64);
    ASSERT_TRUE(memory.ok());
    memory_ = std::move(*memory);
    ASSERT_TRUE(run(program_, memory_->address()).ok());
  }
  void TearDown() override { plan(""); }
  static void plan(const char* text) { ::setenv("BACKPLANE_FAULTY_CL", text, 1); }

  std::shared_ptr<const ClProgram> program_;
  std::unique_ptr<Memory> memory_;
};

TEST_F(FailureTest, ALaunchWithoutMemoryIsMadeOnceMore) {
  context_->pool().give(std::move(*context_->pool().take(1 << 20)));
  ASSERT_EQ(context_->pool().kept_bytes(), 1U << 20);
  plan("clEnqueueNDRangeKernel:-4:0:1");
  EXPECT_TRUE(run(program_, memory_->address()).ok());
  EXPECT_EQ(context_->pool().kept_bytes(), 0U);
}

TEST_F(FailureTest, ALaunchThatNeverFindsMemoryNamesItsNode) {
  plan("clEnqueueNDRangeKernel:-4:0:2");
  const Status status = run(program_, memory_->address());
  EXPECT_EQ(status.code(), bp_code{BP_OUT_OF_MEMORY});
  EXPECT_NE(std::string(status.message()).find("aten.add.Scalar (node 7)"), std::string::npos);
  EXPECT_TRUE(run(program_, memory_->address()).ok());  // the next finds some
  EXPECT_TRUE(context_->check().ok());
}

TEST_F(FailureTest, BuffersAreTriedAgainWithoutTheKeptOnes) {
  context_->pool().give(std::move(*context_->pool().take(1 << 20)));
  plan("clCreateBuffer:-4:0:1");
  EXPECT_TRUE(context_->pool().take(4096).ok());
  EXPECT_EQ(context_->pool().kept_bytes(), 0U);
  plan("clCreateBuffer:-6:0:2");
  auto none = context_->pool().take(1 << 16);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), bp_code{BP_OUT_OF_MEMORY});
  plan("clCreateBuffer:-34:0:1");  // an invalid context: no lack of memory
  none = context_->pool().take(1 << 16);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), bp_code{BP_INTERNAL});
}

TEST_F(FailureTest, WorkThatFailsOnADeviceThatAnswersIsThatCallsAlone) {
  plan("command:-5:0");
  EXPECT_EQ(run(program_, memory_->address()).code(), bp_code{BP_OUT_OF_MEMORY});
  EXPECT_TRUE(context_->check().ok());
  plan("");
  EXPECT_TRUE(run(program_, memory_->address()).ok());
}

TEST_F(FailureTest, ADeviceThatAnswersNothingIsLostForGood) {
  plan("lost:-5:0");
  Status status = run(program_, memory_->address());
  EXPECT_EQ(status.code(), bp_code{BP_DEVICE_LOST});
  EXPECT_NE(std::string(status.message()).find("OpenCL error -5"), std::string::npos);
  EXPECT_NE(std::string(status.message()).find("start the program anew"), std::string::npos);
  plan("");
  EXPECT_EQ(context_->check().code(), bp_code{BP_DEVICE_LOST});
}

TEST_F(FailureTest, ADeviceThatIsGoneIsLost) {
  plan("clEnqueueNDRangeKernel:-2:0:1");
  EXPECT_EQ(run(program_, memory_->address()).code(), bp_code{BP_DEVICE_LOST});
}

TEST_F(FailureTest, NothingRunsOnInHostMemoryOnceADeviceIsLost) {
  auto queue = context_->create_queue();
  ASSERT_TRUE(queue.ok());
  cl_int code = CL_SUCCESS;
  cl_event gate = clCreateUserEvent(context_->get(), &code);
  ASSERT_EQ(code, CL_SUCCESS);
  ASSERT_EQ(clEnqueueMarkerWithWaitList(*queue, 1, &gate, nullptr), CL_SUCCESS);
  clFlush(*queue);
  auto failing = std::async(std::launch::async, [&] {
    return context_->failure("clEnqueueNDRangeKernel", CL_DEVICE_NOT_AVAILABLE);
  });
  EXPECT_EQ(failing.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  clSetUserEventStatus(gate, CL_COMPLETE);
  EXPECT_EQ(failing.get().code(), bp_code{BP_DEVICE_LOST});
  clReleaseEvent(gate);
  context_->release_queue(*queue);
}

TEST_F(FailureTest, OpeningFailsWithoutAContextAndSucceedsLater) {
  Context other(facts_);
  plan("clCreateContext:-6:0:1");
  EXPECT_FALSE(other.open().ok());
  EXPECT_FALSE(other.is_open());
  EXPECT_TRUE(other.open().ok());
}

TEST_F(FailureTest, DevicesMayBeNone) {
  plan("clGetDeviceIDs:-1:0:-1");
  try {
    find_devices();
    ADD_FAILURE() << "found a device";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("no OpenCL device"), std::string::npos);
  }
}

}  // namespace
}  // namespace backplane::opencl
