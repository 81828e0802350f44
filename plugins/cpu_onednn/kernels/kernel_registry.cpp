#include "kernels/kernel_registry.h"

#include <unordered_map>

#include "kernels/primitives/attention.h"

namespace backplane::onednn {
namespace {

constexpr KernelRow kAttention[] = {
    {"aten._scaled_dot_product_flash_attention_for_cpu", make_attention_kernel, refuse_attention},
};

}  // namespace

KernelRows attention_kernels() { return kAttention; }

const KernelRow* find_kernel(std::string_view op) {
  static const auto& table = *[] {
    auto* made = new std::unordered_map<std::string_view, const KernelRow*>;
    for (const KernelRows rows :
         {layer_norm_backward_kernels(), channel_norm_backward_kernels(),
          attention_backward_kernels(), embedding_backward_kernels(),
          convolution_backward_kernels(), pooling_backward_kernels(), nll_loss_kernels(),
          pooling_kernels(), channel_norm_kernels(), attention_kernels(), factory_kernels(),
          indexing_kernels(), scatter_kernels(), scan_kernels(), loss_kernels(), movement_kernels(),
          reduction_kernels(), resampling_kernels(), resampling_backward_kernels()})
      for (const KernelRow& row : rows) made->emplace(row.name, &row);
    return made;
  }();
  const auto found = table.find(op);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace backplane::onednn
