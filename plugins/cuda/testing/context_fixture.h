// For tests: a context on the emulated driver, and a kernel to run on it.
#pragma once

#include <gtest/gtest.h>
#include <backplane/kernelgen/kernel.hpp>
#include <backplane/sdk/testing/host.hpp>

#include <cstdlib>
#include <memory>
#include <string>

#include "context.h"
#include "recorder.h"

namespace backplane::cuda {

class ContextTest : public ::testing::Test {
 protected:
  // Where BACKPLANE_TEST_GPU is set: on the machine's own driver.
  static void use_emulated_driver() {
    if (std::getenv("BACKPLANE_TEST_GPU") != nullptr) return;
    for (const char* variable :
         {"BACKPLANE_CUDA_DRIVER", "BACKPLANE_CUDA_NVRTC", "BACKPLANE_CUDA_BLAS"})
      ::setenv(variable, BACKPLANE_EMULATED_CUDA, 1);
  }
  void SetUp() override {
    use_emulated_driver();
    sdk::detail::g_host = &sdk::testing::host_api();
    sdk::testing::host_cache().clear();
    facts_ = find_devices().front();
    context_ = std::make_unique<Context>(facts_);
    ASSERT_TRUE(context_->open().ok());
  }
  // Makes calls of the driver fail: see testing/emulated_driver.cpp.
  static void plan(const char* text) { ::setenv("BACKPLANE_FAULTY_CUDA", text, 1); }
  void TearDown() override { plan(""); }

  // Adds one to floats.
  static std::shared_ptr<const CudaProgram> add_one(Context& context,
                                                    const std::string& expression = "t[i] + 1.0f") {
    const kernelgen::Printed named = kernelgen::name_entry(
        "BP_KERNEL BP_ENTRY(BP_ITEM BP_GLOBAL uchar* b, ulong o) {\n  BP_BEGIN\n"
        "  BP_GLOBAL float* t = (BP_GLOBAL float*)(b + o);\n  int i = (int)BP_ID(0);\n"
        "  t[i] = " +
        expression + ";\n}\n");
    return std::static_pointer_cast<const CudaProgram>(
        context.program(named.text, named.entry, "aten.add.Scalar (node 7)"));
  }
  Status run(const std::shared_ptr<const CudaProgram>& program, std::byte* address) {
    const std::array<kernels::Bound, 1> arguments = {kernels::Bound{address, 0, true}};
    Recorder recorder(*context_, sdk::Order());
    Status status = recorder.launch(*program, arguments, {4, 1, 1}, {1, 1, 1},
                                    std::make_shared<const Work>(Work{program->label(), {7}}));
    return recorder.finish(sdk::Order(), std::move(status));
  }
  Status read(const std::byte* from, void* to, std::size_t bytes) {
    const Current current(context_->get());
    BP_CUDA_RETURN_IF_ERROR(cuMemcpyDtoHAsync_v2, to, address_of(from), bytes, context_->stream());
    BP_CUDA_RETURN_IF_ERROR(cuStreamSynchronize, context_->stream());
    return {};
  }

  DeviceFacts facts_;
  std::unique_ptr<Context> context_;
};

}  // namespace backplane::cuda
