#include "kernels/frame.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace backplane::reference {
namespace {

Tensor plan_of(const sdk::TensorSpec& spec) {
  Tensor t;
  t.type = type_of(spec.dtype);
  t.dims = spec.dims;
  t.strides = spec.strides;
  t.layout = spec.layout.kind == BP_LAYOUT_OPAQUE ? spec.layout.layout_id : 0;
  return t;
}

// A complex number comes as the text "complex:re,im".
void parse_complex(Attribute& a) {
  constexpr std::string_view kPrefix = "complex:";
  if (a.kind != BP_ATTRIBUTE_STRING || !a.text.starts_with(kPrefix)) return;
  char* end = nullptr;
  a.real = std::strtod(a.text.c_str() + kPrefix.size(), &end);
  a.imaginary = *end == ',' ? std::strtod(end + 1, nullptr) : 0;
  a.kind = BP_ATTRIBUTE_FLOAT;
  a.is_complex = true;
  a.integer = to_integer(a.real);
}

}  // namespace

NodePlan::NodePlan(const sdk::StepContext& step, const KernelRow* kernel) : row(kernel) {
  for (std::size_t i = 0; i < step.step().operands.size(); ++i) {
    const std::uint32_t value = step.step().operands[i];
    operand_present.push_back(value != BP_NONE);
    operands.push_back(value == BP_NONE ? Tensor{} : plan_of(step.value(value)));
    operand_constant.push_back(value != BP_NONE &&
                               step.graph().value(value).has(BP_VALUE_CONSTANT));
  }
  for (const std::uint32_t value : step.step().results) {
    result_present.push_back(value != BP_NONE);
    results.push_back(value == BP_NONE ? Tensor{} : plan_of(step.value(value)));
  }
  if (step.step().is_copy()) return;
  const sdk::NodeView node = step.node();
  list_first = static_cast<std::int64_t>(node.list_first());
  list_count = static_cast<std::int64_t>(node.list_count());
  const bp_graph& graph = step.graph().raw();
  for (std::uint32_t i = 0; i < node.raw().attribute_count; ++i) {
    const bp_attribute& in = *bp_graph_attribute(&graph, node.raw().first_attribute + i);
    Attribute a;
    a.name = sdk::view(in.name);
    a.kind = in.kind;
    a.integer = in.is_class && in.kind == BP_ATTRIBUTE_INT ? step.dims()(in.integer) : in.integer;
    a.real = in.real;
    a.text = sdk::view(in.text);
    parse_complex(a);
    if (in.kind == BP_ATTRIBUTE_DTYPE) a.type = type_of(in.dtype);
    if (in.kind == BP_ATTRIBUTE_INTS || in.kind == BP_ATTRIBUTE_BOOLS)
      for (std::size_t k = 0; k < in.count; ++k)
        a.integers.push_back(in.class_flags && in.class_flags[k] ? step.dims()(in.integers[k])
                                                                 : in.integers[k]);
    if (in.kind == BP_ATTRIBUTE_FLOATS) a.reals.assign(in.reals, in.reals + in.count);
    // A result masked out has a place in the graph, but nobody reads it.
    if (a.name == "output_mask")
      for (std::size_t k = 0; k < std::min(a.integers.size(), result_present.size()); ++k)
        if (a.integers[k] == 0) result_present[k] = false;
    attributes.push_back(std::move(a));
  }
}

Tensor Frame::in(std::int64_t i) const {
  Tensor t = plan_.operands[i];
  t.data = call_.operands[i];
  return t;
}
Tensor Frame::out(std::int64_t i) const {
  if (!wants(i)) return {};
  Tensor t = plan_.results[i];
  t.data = call_.results[i];
  return t;
}

const Attribute* Frame::attribute(std::string_view name) const {
  for (const Attribute& a : plan_.attributes)
    if (a.name == name) return a.kind == BP_ATTRIBUTE_NONE ? nullptr : &a;
  return nullptr;
}
std::int64_t Frame::integer(std::string_view name, std::int64_t fallback) const {
  return scalar<std::int64_t>(name, fallback);
}
double Frame::real(std::string_view name, double fallback) const {
  return scalar<double>(name, fallback);
}
bool Frame::flag(std::string_view name, bool fallback) const {
  const Attribute* a = attribute(name);
  return a ? a->integer != 0 : fallback;
}
std::string_view Frame::text(std::string_view name, std::string_view fallback) const {
  const Attribute* a = attribute(name);
  return a ? std::string_view(a->text) : fallback;
}
Shape Frame::ints(std::string_view name) const {
  const Attribute* a = attribute(name);
  if (a == nullptr) return {};
  if (a->kind == BP_ATTRIBUTE_INT || a->kind == BP_ATTRIBUTE_BOOL) return {a->integer};
  return a->integers;
}
Shape Frame::ints(std::string_view name, std::int64_t n, std::int64_t fallback) const {
  Shape out = ints(name);
  if (out.empty()) out.assign(static_cast<std::size_t>(n), fallback);
  if (out.size() == 1) out.assign(static_cast<std::size_t>(n), out[0]);
  return out;
}
std::vector<double> Frame::reals(std::string_view name) const {
  const Attribute* a = attribute(name);
  if (a == nullptr) return {};
  if (a->kind == BP_ATTRIBUTE_FLOAT) return {a->real};
  std::vector<double> out = a->reals;
  for (std::int64_t v : a->integers) out.push_back(static_cast<double>(v));
  return out;
}
Shape Frame::dims(std::string_view name, std::int64_t rank) const {
  Shape out = ints(name);
  if (out.empty()) {
    out.resize(static_cast<std::size_t>(rank));
    std::iota(out.begin(), out.end(), std::int64_t{0});
    return out;
  }
  if (rank == 0) return {};
  for (std::int64_t& d : out) d = wrap_dim(d, rank);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace backplane::reference
