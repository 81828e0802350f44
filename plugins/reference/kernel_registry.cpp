#include "kernel_registry.h"

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

// Other names of the same meaning and the same arguments.
struct Alias {
  std::string_view name, target;
};
constexpr Alias kAliases[] = {
    {"aten.absolute", "aten.abs"},
    {"aten.negative", "aten.neg"},
    {"aten.divide.Tensor", "aten.div.Tensor"},
    {"aten.clip", "aten.clamp"},
    {"aten.clip.Tensor", "aten.clamp.Tensor"},
    {"aten.special_expit", "aten.sigmoid"},
    {"aten.special_softmax", "aten._softmax"},
    {"aten.special_log_softmax", "aten._log_softmax"},
    {"aten.max.other", "aten.maximum"},
    {"aten.min.other", "aten.minimum"},
    {"aten.float_power.Tensor_Scalar", "aten.float_power.Tensor_Tensor"},
    {"aten.concat", "aten.cat"},
    {"aten._stack", "aten.stack"},
    {"aten.conj", "aten._conj"},
    {"aten.ravel", "aten.reshape"},
    {"aten.unflatten.int", "aten.reshape"},
    {"aten.view_as", "aten.reshape"},
    {"aten.atleast_1d", "aten.reshape"},
    {"aten.atleast_2d", "aten.reshape"},
    {"aten._reshape_alias_copy", "aten.reshape"},
    {"aten.expand_as", "aten.expand_copy"},
    {"aten.broadcast_to", "aten.expand_copy"},
    {"aten.type_as", "aten._to_copy"},
    {"aten.to.device", "aten._to_copy"},
    {"aten.to.dtype_layout", "aten._to_copy"},
    {"aten.tile", "aten.repeat"},
    {"aten._aminmax", "aten.aminmax"},
    {"aten._aminmax.dim", "aten.aminmax"},
    {"aten.adaptive_avg_pool2d", "aten._adaptive_avg_pool2d"},
    {"aten.adaptive_avg_pool3d", "aten._adaptive_avg_pool3d"},
    {"aten.mm.dtype", "aten.mm"},
    {"aten.bmm.dtype", "aten.bmm"},
    {"aten.addmm.dtype", "aten.addmm"},
    {"aten.baddbmm.dtype", "aten.baddbmm"},
    {"aten._int_mm", "aten.mm"},
    {"aten.std_mean", "aten.std_mean.correction"},
    {"aten.std_mean.dim", "aten.std_mean.correction"},
    {"aten._efficientzerotensor", "aten.zeros"},
    {"aten._index_put_impl", "aten.index_put"},
    {"aten.native_norm", "aten.norm.Scalar"},
    {"aten.native_norm.ScalarOpt_dim_dtype", "aten.norm.ScalarOpt_dim_dtype"},
    {"aten.add_.Tensor", "aten.add.Tensor"},
    {"aten.mul_.Tensor", "aten.mul.Tensor"},
    {"aten.fill_.Scalar", "aten.fill.Scalar"},
    {"aten.zero_", "aten.zero"},
};

struct Registry {
  std::unordered_map<std::string_view, KernelRow> rows;
  std::vector<std::string_view> names;

  Registry() {
    for (const KernelRows family :
         {movement_kernels(),      factory_kernels(),     reduction_kernels(),
          matmul_kernels(),        convolution_kernels(), pooling_kernels(),
          normalization_kernels(), softmax_kernels(),     attention_kernels(),
          indexing_kernels(),      padding_kernels(),     scan_kernels(),
          sorting_kernels(),       fft_kernels(),         unpooling_kernels(),
          resampling_kernels(),    grid_kernels(),        loss_kernels(),
          distance_kernels(),      bag_kernels(),         gated_kernels(),
          quantization_kernels(),  statistics_kernels(),  composite_kernels(),
          factorization_kernels(), solver_kernels(),      spectral_kernels()})
      for (const KernelRow& row : family) rows.emplace(row.name, row);
    for (const PointwiseRows family :
         {arithmetic_kernels(), comparison_kernels(), unary_kernels(), activation_kernels(),
          special_kernels(), bessel_kernels(), polynomial_kernels()})
      for (const PointwiseRow& row : family)
        rows.emplace(row.name, KernelRow{row.name, run_pointwise, row.complex != nullptr, &row});
    for (const Alias& alias : kAliases)
      if (const auto found = rows.find(alias.target); found != rows.end())
        rows.emplace(alias.name, KernelRow{alias.name, found->second.run, found->second.complex,
                                           found->second.extra});
    for (const auto& [name, row] : rows) names.push_back(name);
    std::sort(names.begin(), names.end());
  }
};

const Registry& registry() {
  static const Registry all;
  return all;
}

}  // namespace

const KernelRow* find_kernel(std::string_view op) {
  const auto found = registry().rows.find(op);
  return found == registry().rows.end() ? nullptr : &found->second;
}
std::span<const std::string_view> kernel_names() { return registry().names; }

}  // namespace backplane::reference
