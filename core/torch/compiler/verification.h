// The option verify: results of a plugin held against PyTorch's own while a program runs. The first
// call of each set of sizes is held, and a share of the others. What differs by more than rounding
// explains is told, the call gives PyTorch's results, and so do all later ones on that device.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/torch/compiler/compiled_function.h"

namespace backplane::compiler {

class Verification {
 public:
  // `oracle`: the same graph, compiled for no device, with everything on the host. `devices`: of
  // the function that is held against it.
  Verification(VerifyOptions options, std::unique_ptr<CompiledFunction> oracle,
               std::vector<runtime::Device*> devices);

  // In place of function.run().
  Result<std::vector<at::Tensor>> call(CompiledFunction& function, std::span<Argument> arguments,
                                       std::span<const std::int64_t> sizes);

 private:
  const runtime::Device* find_distrusted() const;
  bool is_chosen(std::span<const std::int64_t> sizes);
  // What the oracle makes of inputs that differ from `given` by as much as rounding does, some
  // times.
  std::vector<std::vector<at::Tensor>> disturbed_runs(std::span<const at::Tensor> given,
                                                      std::span<const std::int64_t> sizes,
                                                      const std::function<void()>& before_each);
  std::string compare(std::span<const at::Tensor> results, std::span<const at::Tensor> expected,
                      std::span<const at::Tensor> given, std::span<const std::int64_t> sizes,
                      const std::function<void()>& before_each);
  static std::vector<at::Tensor> at_home(const CompiledFunction& function,
                                         std::vector<at::Tensor> results);

  const VerifyOptions options_;
  const std::unique_ptr<CompiledFunction> oracle_;
  const std::vector<runtime::Device*> devices_;
  const bool draws_;  // some node draws random numbers
  std::atomic<std::uint64_t> calls_{0};
  std::mutex mutex_;                           // guards:
  std::set<std::vector<std::int64_t>> known_;  // sizes that were held once
};

// Of this process.
struct VerificationCounts {
  std::uint64_t calls = 0, differences = 0;
};
VerificationCounts verification_counts();

// By how much `actual` differs from `expected`, in words; empty where rounding may be the cause.
// `disturbed`: what else `expected` might have been, had its inputs been rounded in another way. It
// tells what cancels, and which integers stand on an edge.
std::string find_difference(const at::Tensor& actual, const at::Tensor& expected,
                            std::span<const at::Tensor> disturbed = {});

}  // namespace backplane::compiler
