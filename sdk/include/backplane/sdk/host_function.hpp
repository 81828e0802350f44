// Kernels from plain functions, for memory that the host's code can reach.
#pragma once

#include <backplane/sdk/kernel_table.hpp>

#include <type_traits>

namespace backplane::sdk::host_kernels {

// A kernel from a function of the call, which answers a Status or nothing: everything else has been
// worked out before.
template <class Run>
class Function final : public Kernel {
 public:
  explicit Function(Run run) : run_(std::move(run)) {}
  Status run(const KernelCall& call) const override {
    if constexpr (std::is_void_v<std::invoke_result_t<const Run&, const KernelCall&>>)
      run_(call);
    else
      return run_(call);
    return {};
  }

 private:
  Run run_;
};
template <class Run>
Result<std::unique_ptr<Kernel>> made(Run run) {
  return std::unique_ptr<Kernel>(std::make_unique<Function<Run>>(std::move(run)));
}
inline float* in(const KernelCall& call, std::size_t i) {
  return reinterpret_cast<float*>(call.operands[i]);
}
inline float* out(const KernelCall& call, std::size_t i = 0) {
  return reinterpret_cast<float*>(call.results[i]);
}

}  // namespace backplane::sdk::host_kernels
