// Functions of one number, over all halves.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "core/ir/text.h"
#include "sdk/conformance/src/elements.h"
#include "sdk/conformance/src/kit.h"
#include "sdk/conformance/src/oracle.h"
#include "sdk/conformance/src/small_graph.h"

namespace backplane::conformance {
namespace {

constexpr std::int64_t kHalves = 65536;

// The one computing node of a graph whose only tensor operand is a float.
const ir::Node* function_of(const ir::Graph& graph) {
  if (graph.nodes.size() != 1 || graph.inputs.size() != 1 || graph.outputs.size() != 1)
    return nullptr;
  const ir::Node& node = graph.nodes.front();
  const bool fits = node.op->op_class == ir::OpClass::kPointwise && node.operands.size() == 1 &&
                    node.results.size() == 1 && node.operands[0] == graph.inputs[0] &&
                    ir::is_float(graph.values[graph.inputs[0]].type.dtype);
  return fits ? &node : nullptr;
}

// Of bfloat16 and float32 the number is the upper half of the bits.
Bytes all_halves(ir::DType dtype) {
  const auto bytes = static_cast<std::size_t>(ir::dtype_bytes(dtype));
  Bytes out(static_cast<std::size_t>(kHalves) * bytes, 0);
  for (std::int64_t i = 0; i < kHalves; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    std::memcpy(out.data() + static_cast<std::size_t>(i + 1) * bytes - 2, &bits, 2);
  }
  return out;
}

// Zeros in the place of what PyTorch leaves open: a number that the integer of the result cannot
// hold, and the sign of NaN.
void leave_out_accidents(Bytes& halves, ir::DType dtype, ir::DType result, std::string_view op) {
  const bool is_sign = op.find("signbit") != std::string_view::npos;
  if (!is_sign && !ir::is_integer(result)) return;
  const auto bytes = static_cast<std::size_t>(ir::dtype_bytes(dtype));
  const double limit = is_sign ? std::numeric_limits<double>::infinity()
                               : std::ldexp(1.0, 8 * static_cast<int>(ir::dtype_bytes(result)) - 1);
  const double least = result == ir::DType::kUInt8 ? 0 : -limit;
  for (std::size_t at = 0; at < halves.size(); at += bytes) {
    const double value = read_number(dtype, halves.data() + at).real;
    const bool is_open = is_sign ? std::isnan(value) : !(value >= least && value < limit);
    if (is_open) write_number(dtype, halves.data() + at, {});
  }
}

// Units in the last place; 0: none are asked for, since PyTorch itself computes the function as a
// sum or product whose terms cancel. Longer functions of float32 as OpenCL C allows them.
double allowed_units(ir::DType dtype, std::string_view op) {
  static constexpr std::string_view kSums[] = {"gelu",  "silu",      "sigmoid", "mish",      "elu",
                                               "sinc",  "softplus",  "lgamma",  "digamma",   "entr",
                                               "gamma", "polygamma", "zeta",    "bessel",    "i0",
                                               "i1",    "ndtr",      "logit",   "tanhshrink"};
  static constexpr std::string_view kExact[] = {"abs",   "neg",   "relu", "ceil",
                                                "floor", "round", "trunc"};
  const auto names = [&](std::string_view part) { return op.find(part) != std::string_view::npos; };
  if (std::ranges::any_of(kSums, names)) return 0;
  if (dtype != ir::DType::kFloat32) return 2;
  return std::ranges::any_of(kExact, names) && !names("leaky") ? 0.5 : 16;
}

Outcome run(Kit& kit, const CorpusGraph& source) {
  const auto parsed = source.graph();
  if (!parsed.ok()) return Outcome::mistrusted(parsed.status().message());
  const ir::Node* const node = function_of(*parsed);
  if (node == nullptr) return Outcome::mistrusted("no function of one number");
  ir::Graph graph;
  const ir::DType dtype = parsed->values[parsed->inputs[0]].type.dtype;
  const ir::TensorType in{dtype, {kHalves}, {1}};
  const ir::TensorType made{parsed->values[node->results[0]].type.dtype, {kHalves}, {1}};
  const ir::ValueId x = graph.add_input("x", in);
  graph.add_node_like(*node, {x}, {made});
  graph.outputs.push_back(graph.nodes.front().results.front());

  runtime::Device *device = nullptr, *oracle = nullptr;
  if (Outcome out = open_for(kit, graph, device, oracle); out.verdict != Verdict::kPass) return out;
  std::vector<Bytes> inputs{all_halves(dtype)};
  leave_out_accidents(inputs[0], dtype, made.dtype, node->op->name);
  auto expected = expect(graph, *oracle, {}, inputs);
  if (!expected.ok() || !expected->exact) return Outcome::mistrusted("the oracle does not take it");
  std::vector<Bytes> results;
  if (Outcome out = run_once(*device, graph, inputs, results); out.verdict != Verdict::kPass)
    return out;
  Strictness strictness;
  strictness.units = allowed_units(dtype, node->op->name);
  const Judgement judgement = judge(graph, *expected, results, strictness);
  Outcome out;
  out.share_of_bound = judgement.share_of_bound;
  out.operators = std::string(node->op->name);
  if (!judgement.wrong.empty()) {
    out.verdict = Verdict::kFail;
    out.text = judgement.wrong + ", the element's number is the half's bits";
    out.graph = ir::print(graph);
  }
  return out;
}

}  // namespace

void add_unary_cases(const Corpus& corpus, std::vector<Case>& out) {
  std::set<std::string> seen;
  for (const CorpusGraph& source : corpus.operators) {
    if (source.text.find("f16[") == std::string::npos &&  // bf16 as well
        source.text.find("f32[") == std::string::npos)
      continue;
    const auto parsed = source.graph();
    if (!parsed.ok()) continue;
    const ir::Node* const node = function_of(*parsed);
    if (node == nullptr || parsed->values[parsed->inputs[0]].type.dtype == ir::DType::kFloat64)
      continue;
    const std::string dtype(ir::dtype_name(parsed->values[parsed->inputs[0]].type.dtype));
    std::string text = ir::print_node(*parsed, 0);
    text = text.substr(text.find('='), text.rfind(':') - text.find('='));
    if (!seen.insert(dtype + text).second) continue;
    Case& one = out.emplace_back();
    one.id = "unary:" + source.name;
    one.level = 2;
    one.run = [&source](Kit& kit) { return run(kit, source); };
  }
}

}  // namespace backplane::conformance
