// Kernels from plain functions, for memory that the host's code can reach.
#pragma once

#include <backplane/sdk/kernel_table.hpp>

namespace backplane::sdk::host_kernels {

// A kernel from a function of the call: everything else has been worked out before.
class Function final : public Kernel {
 public:
  explicit Function(std::function<void(const KernelCall&)> run) : run_(std::move(run)) {}
  Status run(const KernelCall& call) const override {
    run_(call);
    return {};
  }

 private:
  std::function<void(const KernelCall&)> run_;
};
inline Result<std::unique_ptr<Kernel>> made(std::function<void(const KernelCall&)> run) {
  return std::make_unique<Function>(std::move(run));
}
inline float* in(const KernelCall& call, std::size_t i) {
  return reinterpret_cast<float*>(call.operands[i]);
}
inline float* out(const KernelCall& call, std::size_t i = 0) {
  return reinterpret_cast<float*>(call.results[i]);
}

}  // namespace backplane::sdk::host_kernels
