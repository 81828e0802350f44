// Long reductions with few results, for devices with many work-items: kernels that reduce slices of
// what there is, and kernels that reduce their results. The same slices in every run, in the same
// order.
#pragma once

#include <backplane/kernelgen/kernel.hpp>

#include <optional>
#include <vector>

namespace backplane::kernelgen {

struct SplitKernel {
  struct Scratch {
    Storage storage;
    std::int64_t elements;
  };
  std::vector<Scratch> scratch;  // tensors of every kernel, behind those of the whole
  std::vector<Kernel> kernels;   // to run in this order
};
// Nothing where the kernel is best as it is.
std::optional<SplitKernel> split_reductions(const Kernel& kernel, Dialect dialect,
                                            const Schedule& schedule);

}  // namespace backplane::kernelgen
