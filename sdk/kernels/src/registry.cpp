#include "registry.hpp"

#include <unordered_map>

namespace backplane::kernels {

const KernelRow* find_kernel(std::string_view op) {
  static const auto all = [] {
    std::unordered_map<std::string_view, const KernelRow*> map;
    for (const auto family :
         {matmul_kernels(), movement_kernels(), indexing_kernels(), scatter_kernels(),
          scan_kernels(), factory_kernels(), norm_kernels(), loss_kernels(), attention_kernels(),
          convolution_kernels(), pooling_kernels(), resampling_kernels()})
      for (const KernelRow& row : family) map.emplace(row.name, &row);
    return map;
  }();
  const auto found = all.find(op);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace backplane::kernels
