#include "core/passes/fold_padding.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/ir/view.h"
#include "core/passes/rewrite.h"

namespace backplane::passes {
namespace {

using ir::kNone;
using ir::ValueId;

using Numbers = std::vector<std::int64_t>;

constexpr std::size_t kSpatialDim = 2;  // the first one

// Zeros that a constant_pad_nd puts on either side of each spatial dim, or takes away; null where
// sides differ, other dims are padded, or not with zeros.
std::optional<Numbers> find_even_zeros(const ir::Graph& graph, const ir::Node& pad) {
  if (const ir::Attribute* value = pad.find_attribute("value")) {
    const double* number = std::get_if<double>(&value->value);
    const ir::Dim* whole = std::get_if<ir::Dim>(&value->value);
    if (!(number != nullptr && *number == 0) && !(whole != nullptr && *whole == ir::Dim(0)))
      return std::nullopt;
  }
  const std::size_t rank = graph.values[pad.operands[0]].type.rank();
  const std::optional<Numbers> pairs = find_integers(pad, "pad");  // the last dim's come first
  if (!pairs || rank <= kSpatialDim || pairs->size() > 2 * (rank - kSpatialDim))
    return std::nullopt;
  Numbers zeros(rank - kSpatialDim, 0);
  for (std::size_t i = 0; 2 * i < pairs->size(); ++i) {
    if ((*pairs)[2 * i] != (*pairs)[2 * i + 1]) return std::nullopt;
    zeros[zeros.size() - 1 - i] = (*pairs)[2 * i];
  }
  return zeros;
}

class Rewriter {
 public:
  explicit Rewriter(ir::Graph& graph)
      : graph_(graph),
        facts_(graph),
        users_(graph.values.size(), nullptr),
        reads_(graph.values.size()) {
    for (const ir::Node& node : graph.nodes)
      for (const ValueId operand : node.operands)
        if (operand != kNone) users_[operand] = &node;
    std::iota(reads_.begin(), reads_.end(), ValueId{0});
  }

  void run() {
    for (ir::Node& node : graph_.nodes) {
      for (ValueId& operand : node.operands)
        if (operand != kNone) operand = reads_[operand];
      if (node.op->name == "aten.convolution") fold(node, 0);
      if (node.op->name == "aten.convolution_backward") fold(node, 1);
    }
    for (ValueId& output : graph_.outputs) output = reads_[output];
    graph_.eliminate_dead();
  }

 private:
  void fold(ir::Node& convolution, std::size_t image_operand) {
    ValueId& image = convolution.operands[image_operand];
    const ir::Node* pad = find_producer(graph_, image, {"aten.constant_pad_nd"});
    if (pad == nullptr || is_transposed(convolution)) return;
    const ValueId bare = pad->operands[0];
    const std::optional<Numbers> zeros = find_even_zeros(graph_, *pad);
    std::optional<Numbers> padding = find_integers(convolution, "padding");
    if (!zeros || !padding || padding->empty() || facts_.is_written[ir::view_root(graph_, bare)] ||
        facts_.is_written[ir::view_root(graph_, image)] ||
        std::any_of(zeros->begin(), zeros->end(), [](std::int64_t n) { return n < 0; }))
      return;
    if (image_operand == 1 && !take_gradient_over(convolution, *zeros)) return;
    if (padding->size() == 1) padding->resize(zeros->size(), padding->front());
    std::vector<ir::Dim> dims;
    for (std::size_t i = 0; i < padding->size(); ++i)
      dims.emplace_back((*padding)[i] + (*zeros)[i]);
    std::find_if(convolution.attributes.begin(), convolution.attributes.end(),
                 [](const ir::Attribute& attribute) { return attribute.name == "padding"; })
        ->value = std::move(dims);
    image = bare;
  }

  // The gradient of the padded image may only serve to cut the zeros' part off: what that gives is
  // the gradient from now on. False where it has other users.
  bool take_gradient_over(ir::Node& convolution, const Numbers& zeros) {
    const ValueId gradient = convolution.results[0];
    if (facts_.use_count[gradient] == 0) return true;
    if (facts_.use_count[gradient] != 1 || facts_.is_output[gradient]) return false;
    const ir::Node& cut = *users_[gradient];
    if (cut.op->name != "aten.constant_pad_nd") return false;
    const std::optional<Numbers> taken = find_even_zeros(graph_, cut);
    if (!taken || !std::equal(taken->begin(), taken->end(), zeros.begin(), zeros.end(),
                              [](std::int64_t a, std::int64_t b) { return a == -b; }))
      return false;
    ir::Value& all = graph_.values[gradient];
    const ir::Value& part = graph_.values[cut.results[0]];
    all.type = part.type;
    all.is_saved = all.is_saved || part.is_saved;
    reads_[cut.results[0]] = gradient;
    return true;
  }

  static bool is_transposed(const ir::Node& convolution) {
    const ir::Attribute* transposed = convolution.find_attribute("transposed");
    const bool* value = transposed != nullptr ? std::get_if<bool>(&transposed->value) : nullptr;
    return value == nullptr || *value;
  }

  ir::Graph& graph_;
  const GraphFacts facts_;              // of the graph before any rewrite
  std::vector<const ir::Node*> users_;  // by value: the last one
  std::vector<ValueId> reads_;          // where each value's users read instead
};

}  // namespace

Status fold_padding(ir::Graph& graph) {
  Rewriter(graph).run();
  return {};
}

}  // namespace backplane::passes
