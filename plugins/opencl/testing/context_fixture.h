// For tests: a context on the first device, and a kernel to run on it.
#pragma once

#include <gtest/gtest.h>
#include <backplane/kernelgen/kernel.hpp>
#include <backplane/sdk/testing/host.hpp>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "context.h"
#include "recorder.h"

namespace backplane::opencl {

class ContextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sdk::detail::g_host = &sdk::testing::host_api();
    sdk::testing::host_cache().clear();
    try {
      facts_ = find_devices().front();
    } catch (const std::exception& e) {
      // Without a driver there is nothing to test; one that does not answer is a failure.
      if (has_driver()) FAIL() << e.what();
      GTEST_SKIP() << e.what();
    }
    context_ = std::make_unique<Context>(facts_);
    ASSERT_TRUE(context_->open().ok());
  }
  static bool has_driver() {
    std::error_code none;
    const std::filesystem::path drivers = "/etc/OpenCL/vendors";
    return std::getenv("OCL_ICD_VENDORS") != nullptr ||
           (std::filesystem::exists(drivers, none) && !std::filesystem::is_empty(drivers, none));
  }
  // Adds one to four floats.
  std::shared_ptr<const ClProgram> add_one(const std::string& expression = "t[i] + 1.0f") {
    const kernelgen::Printed named = kernelgen::name_entry(
        "BP_KERNEL BP_ENTRY(BP_ITEM BP_GLOBAL uchar* b, ulong o) {\n  BP_BEGIN\n"
        "  BP_GLOBAL float* t = (BP_GLOBAL float*)(b + o);\n  int i = (int)BP_ID(0);\n"
        "  t[i] = " +
        expression + ";\n}\n");
    return std::static_pointer_cast<const ClProgram>(
        context_->program(named.text, named.entry, "aten.add.Scalar (node 7)"));
  }
  Status run(const std::shared_ptr<const ClProgram>& program, std::byte* address) {
    const std::array<kernels::Bound, 1> arguments = {kernels::Bound{address, 0, true}};
    Recorder recorder(*context_, context_->queue(), {});
    Status status = recorder.launch(*program, arguments, {4, 1, 1}, {1, 1, 1},
                                    std::make_shared<const Work>(Work{program->label(), {7}}));
    auto event = recorder.finish(status);
    cl_int state = CL_COMPLETE;
    if (event.ok()) {
      clWaitForEvents(1, &*event);
      clGetEventInfo(*event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, nullptr);
      clReleaseEvent(*event);
    }
    if (status.ok() && state < 0) return context_->failure("the device's work", state);
    return status;
  }

  DeviceFacts facts_;
  std::unique_ptr<Context> context_;
};

}  // namespace backplane::opencl
