// Operators with kernels of their own. Every family file lists its operators in one array.
#pragma once

#include <span>
#include <string_view>

#include "builder.hpp"

namespace backplane::kernels {

using Refuse = std::optional<sdk::Refusal> (*)(const sdk::NodeView& node);

struct KernelRow {
  std::string_view name;
  Status (*build)(Builder& builder);
  Refuse refuse = nullptr;  // null: takes all
  // What the device decides beside; asked where `refuse` takes the node.
  std::optional<sdk::Refusal> (*refuse_on)(const Facts& facts, const sdk::NodeView& node) = nullptr;
};
const KernelRow* find_kernel(std::string_view op);
inline sdk::Refusal refusal(bp_refusal reason, std::string text) {
  return {0, reason, std::move(text)};
}

std::span<const KernelRow> matmul_kernels();
std::span<const KernelRow> movement_kernels();
std::span<const KernelRow> indexing_kernels();
std::span<const KernelRow> scatter_kernels();
std::span<const KernelRow> scan_kernels();
std::span<const KernelRow> factory_kernels();
std::span<const KernelRow> norm_kernels();
std::span<const KernelRow> loss_kernels();
std::span<const KernelRow> attention_kernels();
std::span<const KernelRow> convolution_kernels();
std::span<const KernelRow> pooling_kernels();
std::span<const KernelRow> resampling_kernels();

// Products: their pointwise followers join them.
bool takes_epilogue(const sdk::NodeView& node);

}  // namespace backplane::kernels
