// Op name to kernel. Every family file lists its ops in one constant array.
#pragma once

#include <backplane/sdk/device.hpp>

#include <optional>
#include <span>
#include <string_view>

#include "kernels/frame.h"

namespace backplane::reference {

// One op. `run` reads operands, computes in double, int64 or complex, and writes the results.
struct KernelRow {
  std::string_view name;
  void (*run)(const Frame&);
  bool complex = false;         // takes complex operands
  const void* extra = nullptr;  // of the family
  // Null: takes all that the common checks let through.
  std::optional<sdk::Refusal> (*refuse)(const sdk::NodeView& node) = nullptr;
};

const KernelRow* find_kernel(std::string_view op);
std::span<const std::string_view> kernel_names();  // sorted

struct PointwiseRow;
using KernelRows = std::span<const KernelRow>;
using PointwiseRows = std::span<const PointwiseRow>;

PointwiseRows arithmetic_kernels();
PointwiseRows comparison_kernels();
PointwiseRows unary_kernels();
PointwiseRows activation_kernels();
PointwiseRows special_kernels();
KernelRows movement_kernels();
KernelRows factory_kernels();
KernelRows reduction_kernels();
KernelRows matmul_kernels();
KernelRows convolution_kernels();
KernelRows pooling_kernels();
KernelRows normalization_kernels();
KernelRows softmax_kernels();
KernelRows attention_kernels();
KernelRows indexing_kernels();
KernelRows padding_kernels();
KernelRows scan_kernels();
KernelRows sorting_kernels();
KernelRows fft_kernels();
KernelRows unpooling_kernels();
KernelRows resampling_kernels();
KernelRows grid_kernels();
KernelRows loss_kernels();
KernelRows distance_kernels();
KernelRows bag_kernels();
KernelRows gated_kernels();
KernelRows quantization_kernels();
KernelRows statistics_kernels();
KernelRows composite_kernels();
KernelRows factorization_kernels();
KernelRows solver_kernels();
KernelRows spectral_kernels();
PointwiseRows bessel_kernels();
PointwiseRows polynomial_kernels();

}  // namespace backplane::reference
