#include "sdk/conformance/src/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/ir/verifier.h"
#include "core/ir/view.h"
#include "sdk/conformance/src/elements.h"
#include "sdk/conformance/src/filling.h"

namespace backplane::conformance {
namespace {

using ir::DType;

DType wide(DType dtype) {
  if (ir::is_float(dtype)) return DType::kFloat64;
  if (ir::is_complex(dtype)) return DType::kComplex128;
  return dtype;
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }
double distance(double a, double exact, double least_scale) {
  if (same(a, exact)) return 0;
  const double out = std::fabs(a - exact) / std::max(std::fabs(exact), least_scale);
  return std::isnan(out) ? std::numeric_limits<double>::infinity() : out;
}

// Of 16-bit floats, of single and of double precision, where the oracle is no better than a plugin.
constexpr double kShortUnits = 4, kUnits = 48, kLongUnits = 1024;
// Terms of a sum are about so much larger than the sum.
constexpr double kTerms = 0.25;
constexpr double kOracleFactor = 4;  // of what the oracle itself is off

Result<std::vector<Bytes>> results_of(const ir::Graph& graph, runtime::Device& device,
                                      const Sizes& classes, std::vector<Bytes>& inputs) {
  std::vector<void*> addresses;
  for (Bytes& input : inputs) addresses.push_back(input.data());
  BP_ASSIGN_OR_RETURN(auto run, GraphRun::make(graph, device, nullptr, classes, addresses));
  GraphRun::Results results;
  BP_RETURN_IF_ERROR(run->call(addresses, results));
  std::vector<Bytes> out;
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) out.push_back(results.output(i));
  return out;
}

// One part of one element.
struct Part {
  double actual = 0, expected = 0, exact = 0;
};

class TensorJudge {
 public:
  TensorJudge(DType dtype, const Bytes& actual, const Bytes& expected, const Bytes* exact,
              bool has_sums)
      : dtype_(dtype), actual_(actual), expected_(expected), exact_(exact), has_sums_(has_sums) {}

  void run(const Strictness& strictness, Judgement& out) const {
    const auto bytes = static_cast<std::size_t>(ir::dtype_bytes(dtype_));
    const std::size_t count = expected_.size() / bytes;
    if (actual_.size() != expected_.size()) {
      out.wrong = "it has " + std::to_string(actual_.size() / bytes) + " elements instead of " +
                  std::to_string(count);
      return;
    }
    const bool floats = ir::is_float(dtype_) || ir::is_complex(dtype_);
    double least_scale = 1;
    for (std::size_t i = 0; has_sums_ && floats && i < count; ++i)
      each(i, [&](const Part& p) {
        if (std::isfinite(p.exact))
          least_scale = std::max(least_scale, kTerms * std::fabs(p.exact));
      });
    double off = 0;  // the oracle's own
    for (std::size_t i = 0; floats && i < count; ++i)
      each(i, [&](const Part& p) {
        const double d = distance(p.expected, p.exact, least_scale);
        if (std::isfinite(d)) off = std::max(off, d);
      });
    const double unit = float_format(dtype_).unit;
    const double units = unit > 1e-4 ? kShortUnits : unit > 1e-12 ? kUnits : kLongUnits;
    const double allowed = kOracleFactor * off + units * unit;
    for (std::size_t i = 0; i < count; ++i)
      each(i, [&](const Part& p) {
        double share = 0;
        if (!same(p.actual, p.expected) && !same(p.actual, p.exact)) {
          if (!floats || (strictness.exact && p.expected == p.exact))
            share = std::numeric_limits<double>::infinity();
          else if (strictness.units != 0)
            share = in_units(p.actual, p.exact) / strictness.units;
          else
            share = distance(p.actual, p.exact, least_scale) / allowed;
        }
        // A number beyond the largest is infinity for some and the largest for others.
        if (share > 1 && floats && std::isinf(p.actual) != std::isinf(p.exact) &&
            std::min(std::fabs(p.actual), std::fabs(p.exact)) >= 0.9 * float_format(dtype_).largest)
          share = 1;
        if (share > 1 && out.wrong.empty()) out.wrong = text(i, p);
        out.share_of_bound = std::max(out.share_of_bound, share);
      });
  }

 private:
  // Numbers below the normal ones may be zero.
  double in_units(double actual, double exact) const {
    if (std::fabs(actual - exact) <= float_format(dtype_).least_normal) return 0;
    const double step = std::ldexp(2 * float_format(dtype_).unit, std::ilogb(exact));
    const double out = std::fabs(actual - exact) / step;
    return std::isnan(out) ? std::numeric_limits<double>::infinity() : out;
  }
  template <class Body>
  void each(std::size_t i, Body&& body) const {
    const auto bytes = static_cast<std::size_t>(ir::dtype_bytes(dtype_));
    const Number a = read_number(dtype_, actual_.data() + i * bytes);
    const Number e = read_number(dtype_, expected_.data() + i * bytes);
    Number x = e;
    if (exact_ != nullptr) {
      const DType type = wide(dtype_);
      x = read_number(type, exact_->data() + i * static_cast<std::size_t>(ir::dtype_bytes(type)));
    }
    body(Part{a.real, e.real, x.real});
    if (ir::is_complex(dtype_)) body(Part{a.imaginary, e.imaginary, x.imaginary});
  }
  std::string text(std::size_t i, const Part& p) const {
    const auto number = [&](double value) {
      char buffer[40];
      std::snprintf(buffer, sizeof buffer, "%.9g", value);
      return std::string(buffer);
    };
    return "element " + std::to_string(i) + " is " + number(p.actual) + ", expected " +
           number(p.expected) + (exact_ != nullptr ? " (exactly " + number(p.exact) + ")" : "");
  }

  DType dtype_;
  const Bytes &actual_, &expected_;
  const Bytes* exact_;
  bool has_sums_;
};

}  // namespace

std::optional<ir::Graph> widened(const ir::Graph& graph) {
  ir::Graph out = graph;
  for (const ir::Node& node : out.nodes)
    if (node.op->name.find("view.dtype") != std::string_view::npos ||
        node.op->name.find("nextafter") != std::string_view::npos ||
        node.op->name.find("frexp") != std::string_view::npos)
      return std::nullopt;
  for (ir::Value& value : out.values) {
    const DType old = value.type.dtype;
    value.type.dtype = wide(old);
    if (!value.constant || wide(old) == old) continue;
    auto data = std::make_shared<ir::ConstantData>();
    const auto from = static_cast<std::size_t>(ir::dtype_bytes(old));
    const auto to = static_cast<std::size_t>(ir::dtype_bytes(wide(old)));
    data->bytes.resize(value.constant->bytes.size() / from * to);
    for (std::size_t i = 0; i * from < value.constant->bytes.size(); ++i)
      write_number(wide(old), data->bytes.data() + i * to,
                   read_number(old, value.constant->bytes.data() + i * from));
    value.constant = std::move(data);
  }
  for (ir::Node& node : out.nodes)
    for (ir::Attribute& attribute : node.attributes)
      if (auto* dtype = std::get_if<DType>(&attribute.value)) *dtype = wide(*dtype);
  if (!ir::verify(out).ok()) return std::nullopt;
  return out;
}

Result<Expected> expect(const ir::Graph& graph, runtime::Device& oracle, const Sizes& classes,
                        std::vector<Bytes>& inputs) {
  Expected out;
  BP_ASSIGN_OR_RETURN(out.results, results_of(graph, oracle, classes, inputs));
  if (const std::optional<ir::Graph> exact = widened(graph)) {
    std::vector<Bytes> wide_inputs = converted(graph, *exact, classes, inputs);
    auto results = results_of(*exact, oracle, classes, wide_inputs);
    if (results.ok()) out.exact = std::move(*results);
  }
  return out;
}

bool says_something(const ir::Graph& graph, const Expected& expected) {
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const DType dtype = graph.values[graph.outputs[i]].type.dtype;
    const auto bytes = static_cast<std::size_t>(ir::dtype_bytes(dtype));
    for (std::size_t at = 0; at < expected.results[i].size(); at += bytes)
      if (!std::isnan(read_number(dtype, expected.results[i].data() + at).real)) return true;
  }
  return false;
}

Judgement judge(const ir::Graph& graph, const Expected& expected, const std::vector<Bytes>& actual,
                const Strictness& strictness) {
  Judgement out;
  const bool has_sums = adds_up(graph);
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const TensorJudge one(graph.values[graph.outputs[i]].type.dtype, actual[i], expected.results[i],
                          expected.exact ? &(*expected.exact)[i] : nullptr, has_sums);
    const bool was_right = out.wrong.empty();
    one.run(strictness, out);
    if (was_right && !out.wrong.empty())
      out.wrong = "output " + std::to_string(i) + ": " + out.wrong;
  }
  return out;
}

bool is_exact_on_integers(const ir::Graph& graph) {
  static constexpr std::string_view kExact[] = {
      "aten.add.",        "aten.sub.",   "aten.mul.",     "aten.neg",     "aten.abs",
      "aten.relu",        "aten.mm",     "aten.bmm",      "aten.addmm",   "aten.baddbmm",
      "aten.addmv",       "aten.addbmm", "aten.mv",       "aten.dot",     "aten.sum",
      "aten.amax",        "aten.amin",   "aten.maximum",  "aten.minimum", "aten.max_pool",
      "aten.convolution", "aten.linear", "aten.where",    "aten.cumsum",  "aten.clamp",
      "aten.sign",        "aten.eq.",    "aten.ne.",      "aten.lt.",     "aten.le.",
      "aten.gt.",         "aten.ge.",    "aten.logical_", "aten.square",  "aten.addcmul",
      "aten.threshold"};
  bool any = false;
  for (const ir::Node& node : graph.nodes) {
    const auto type = [&](ir::ValueId value) { return graph.values[value].type.dtype; };
    for (const ir::ValueId result : node.results)
      // Sums of many small numbers leave what bfloat16 holds.
      if (result != ir::kNone && type(result) == DType::kBFloat16) return false;
    if (node.op->op_class == ir::OpClass::kView || node.op->op_class == ir::OpClass::kMovement ||
        node.op->op_class == ir::OpClass::kIndexing) {
      any = true;
      continue;
    }
    if (std::ranges::none_of(kExact, [&](auto name) { return node.op->name.starts_with(name); }))
      return false;
    for (const ir::Attribute& attribute : node.attributes)
      if (const auto* number = std::get_if<double>(&attribute.value);
          number != nullptr && *number != std::round(*number))
        return false;
    any = true;
  }
  return any;
}

}  // namespace backplane::conformance
