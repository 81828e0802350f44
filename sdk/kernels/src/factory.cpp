// Tensors out of numbers.
#include "registry.hpp"

namespace backplane::kernels {
namespace {

Status store_everywhere(Builder& b, const std::function<Expr(Draft&, kernelgen::Type)>& value) {
  const TensorView out = b.result();
  Draft d(b, out.dims);
  d.store(out, d.outer(), value(d, kernelgen::compute_type(out.storage)));
  return d.finish();
}
Expr number(Draft& d, kernelgen::Type type, const Builder& b, std::string_view name,
            double fallback) {
  const bp_attribute* a = b.step().node().attribute(name);
  if (a == nullptr) return d.e().constant(type, fallback);
  if (a->kind == BP_ATTRIBUTE_FLOAT) return d.e().constant(type, a->real);
  return d.e().integer(type, b.step().int_or(name, 0));
}
Status full(Builder& b) {
  return store_everywhere(b, [&](Draft& d, kernelgen::Type t) {
    const bool scalar = b.step().node().attribute("s") != nullptr;
    return number(d, t, b, scalar ? "s" : "fill_value", 0);
  });
}
template <int kValue>
Status filled(Builder& b) {
  return store_everywhere(b, [](Draft& d, kernelgen::Type t) { return d.e().constant(t, kValue); });
}
Status arange(Builder& b) {
  const TensorView out = b.result();
  const kernelgen::Type t = kernelgen::compute_type(out.storage);
  // Floats count in float64, as PyTorch does, where the device has it.
  const bool wide = t == kernelgen::Type::kF32 && b.facts().has_fp64;
  Draft d(b, out.dims);
  const kernelgen::Type in = wide ? kernelgen::Type::kF64 : t;
  const Expr at = d.e().cast(d.outer()[0], in);
  const Expr value =
      d.e().add(number(d, in, b, "start", 0), d.e().mul(at, number(d, in, b, "step", 1)));
  d.store(out, d.outer(), d.e().cast(value, t));
  return d.finish();
}
Status eye(Builder& b) {
  return store_everywhere(b, [](Draft& d, kernelgen::Type t) {
    return d.e().cast(d.e().binary(kernelgen::Op::kEq, d.outer()[0], d.outer()[1]), t);
  });
}
std::optional<sdk::Refusal> refuse_complex(const sdk::NodeView& node) {
  for (const char* name : {"fill_value", "s", "start", "step"})
    if (const bp_attribute* a = node.attribute(name); a && a->kind == BP_ATTRIBUTE_STRING)
      return refusal(BP_REFUSED_DTYPE, "no complex numbers");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.full", full, refuse_complex},
    {"aten.full_like", full, refuse_complex},
    {"aten.new_full", full, refuse_complex},
    {"aten.scalar_tensor", full, refuse_complex},
    {"aten.zeros", filled<0>},
    {"aten.new_zeros", filled<0>},
    {"aten.ones", filled<1>},
    {"aten.ones_like", filled<1>},
    {"aten.new_ones", filled<1>},
    {"aten.empty.memory_format", filled<0>},
    {"aten.empty_like", filled<0>},
    {"aten.new_empty", filled<0>},
    {"aten.empty_strided", filled<0>},
    {"aten.new_empty_strided", filled<0>},
    {"aten.arange", arange, refuse_complex},
    {"aten.arange.start", arange, refuse_complex},
    {"aten.arange.start_step", arange, refuse_complex},
    {"aten.eye", eye},
    {"aten.eye.m", eye},
};

}  // namespace

std::span<const KernelRow> factory_kernels() { return kRows; }

}  // namespace backplane::kernels
