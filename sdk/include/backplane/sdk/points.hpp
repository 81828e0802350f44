// Kernels of points, each of which computes pointwise and row operators one point at a time: where
// those points lie, what such a kernel cannot run, and which of its values are rounded on the way.
#pragma once

#include <backplane/sdk/program.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::sdk {

// The points that pointwise and row operators of one group are computed at.
struct PointSpace {
  std::vector<bp_dim> wide;
  std::vector<std::size_t> rows;  // the dims of `wide` that a row is made of
  bool has_rows = false;

  // Whether a value of these dims has a place in it: whole, or one element a row.
  bool fits(std::span<const bp_dim> dims) const {
    const auto same = [&](const std::vector<bp_dim>& own) {
      return std::equal(dims.begin(), dims.end(), own.begin(), own.end());
    };
    if (same(wide)) return true;
    if (!has_rows) return false;
    std::vector<bp_dim> narrow = wide;
    for (const std::size_t d : rows) narrow[d] = 1;
    return same(narrow);
  }
  // The space of both groups together.
  static std::optional<PointSpace> join(const PointSpace& a, const PointSpace& b) {
    if (a.has_rows == b.has_rows) {
      if (a.wide != b.wide || a.rows != b.rows) return std::nullopt;
      return a;
    }
    const PointSpace &with = a.has_rows ? a : b, &without = a.has_rows ? b : a;
    if (!with.fits(without.wide)) return std::nullopt;
    return with;
  }
};

inline bool is_float(bp_dtype type) {
  return type.code == BP_DTYPE_FLOAT || type.code == BP_DTYPE_BFLOAT;
}
inline bool is_half(bp_dtype type) { return is_float(type) && type.bits == 16; }

// Why no kernel of points can run a pointwise or row operator, whose tensors have kernels' types.
inline std::optional<Refusal> refuse_points(const NodeView& node, bool floats_only) {
  const auto no = [](bp_refusal reason, std::string_view text) {
    return Refusal{0, reason, std::string(text)};
  };
  if (node.result().dtype().bits == 0) return no(BP_REFUSED_ATTRIBUTE, "no result");
  if (node.operand_count() == 0 || !node.has_operand(0))
    return no(BP_REFUSED_ATTRIBUTE, "no tensor operand");
  if (floats_only && !is_float(node.result().dtype()))
    return no(BP_REFUSED_DTYPE, "floating point results only");
  for (std::size_t i = 0; i < node.attribute_count(); ++i) {
    const bp_attribute& a = node.raw_attribute(i);
    const std::string_view name = view(a.name);
    if (a.kind != BP_ATTRIBUTE_STRING) continue;
    const std::string_view text = node.text_or(name, "");
    if (name == "rounding_mode" && text != "floor" && text != "trunc")
      return no(BP_REFUSED_ATTRIBUTE, "an unknown rounding mode");
    for (const std::string_view number :
         {"other", "value", "self", "exponent", "min", "max", "alpha"})
      if (name == number) return no(BP_REFUSED_DTYPE, "no complex numbers");  // which are text
  }
  const std::string_view op = node.op();
  if (op.starts_with("aten.bitwise") || op.starts_with("aten.gcd") ||
      op.find("shift__.") != std::string_view::npos)
    for (std::size_t i = 0; i < node.operand_count(); ++i)
      if (node.has_operand(i) && is_float(node.operand(i).dtype()))
        return no(BP_REFUSED_DTYPE, "bit operations on integers only");
  return std::nullopt;
}

// Whether a small error of a node's operands may become a large one of its results: they are whole
// numbers or truth values, or the operator jumps.
inline bool jumps(const NodeView& node) {
  // Operators with steps, without their overloads.
  static constexpr std::string_view kJump[] = {
      "angle",
      "bernoulli",
      "ceil",
      "elu_backward",
      "fix",
      "floor",
      "floor_divide",
      "fmod",
      "frac",
      "hardshrink",
      "hardshrink_backward",
      "hardsigmoid_backward",
      "hardswish_backward",
      "hardtanh_backward",
      "heaviside",
      "huber_loss_backward",
      "leaky_relu_backward",
      "nan_to_num",
      "nextafter",
      "remainder",
      "round",
      "sgn",
      "sign",
      "smooth_l1_loss_backward",
      "softplus_backward",
      "softshrink_backward",
      "threshold",
      "threshold_backward",
      "trunc",
      // With poles, beside which no digit says where the value is.
      "digamma",
      "lgamma",
      "polygamma",
      "tan",
  };
  for (std::size_t r = 0; r < node.result_count(); ++r)
    if (node.result_index(r) != BP_NONE && !is_float(node.result(r).dtype())) return true;
  std::string_view name = node.op();
  if (!name.starts_with("aten.")) return false;
  name.remove_prefix(5);
  name = name.substr(0, name.find('.'));
  if (name == "div") return node.attribute("rounding_mode") != nullptr;
  if (name == "pow") return node.attribute("exponent") == nullptr;  // of negative numbers
  return std::find(std::begin(kJump), std::end(kJump), name) != std::end(kJump);
}

// Values of 16-bit floats that a step makes and reads itself have float32's digits in registers,
// which makes chains of them better than PyTorch's. These have to be read with their own type's
// digits all the same: all that leads to a node that jumps, so that a whole number is the one that
// it would be without fusion; what becomes another type, so that an overflow shows; and what the
// step stores, so that its results agree with each other.
inline std::set<std::uint32_t> rounded_values(const GraphView& graph, const Step& step) {
  std::set<std::uint32_t> lead, rounded(step.results.begin(), step.results.end());
  for (std::size_t n = step.nodes.size(); n-- > 0;) {
    const NodeView node = graph[step.nodes[n]];
    bool leads = jumps(node);
    for (std::size_t r = 0; r < node.result_count(); ++r)
      leads = leads || lead.contains(node.result_index(r));
    for (std::size_t i = 0; i < node.operand_count(); ++i) {
      if (!node.has_operand(i)) continue;
      if (leads) lead.insert(node.operand_index(i));
      for (std::size_t r = 0; r < node.result_count(); ++r)
        if (node.result_index(r) != BP_NONE && !(node.result(r).dtype() == node.operand(i).dtype()))
          rounded.insert(node.operand_index(i));
    }
  }
  rounded.merge(lead);
  rounded.erase(BP_NONE);
  for (const std::uint32_t v : step.operands) rounded.erase(v);
  std::erase_if(rounded, [&](std::uint32_t v) { return !is_half(graph.value(v).dtype()); });
  return rounded;
}

}  // namespace backplane::sdk
