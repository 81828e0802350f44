#include "core/passes/sum_products.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/ir/dim_algebra.h"
#include "core/ir/view.h"
#include "core/passes/rewrite.h"

namespace backplane::passes {
namespace {

using ir::kNone;
using ir::NodeId;
using ir::ValueId;

constexpr std::size_t kMinTerms = 4;
// A term's factors are read and copied once more; they are small beside the matrix that it writes.
constexpr std::int64_t kMaxDepth = 32;
constexpr std::int64_t kMinExtentPerDepth = 4;

struct Sum {
  std::vector<NodeId> adds;   // in order; the last one gives the sum
  std::vector<NodeId> terms;  // the products among its addends
};

ir::TensorType row_major_type(ir::DType dtype, ir::Dim rows, ir::Dim columns) {
  return {dtype, {rows, columns}, {columns, 1}};
}

class Rewriter {
 public:
  explicit Rewriter(ir::Graph& graph)
      : graph_(graph), algebra_(graph), facts_(graph), reads_(graph.values.size()) {
    std::iota(reads_.begin(), reads_.end(), ValueId{0});
  }

  void run() {
    for (const Sum& sum : find_sums()) {
      if (sum.terms.size() >= kMinTerms && !touches_written(sum)) rewrite(sum);
    }
    place_inserted();
    graph_.eliminate_dead();
  }

 private:
  const ir::TensorType& type_of(ValueId value) const { return graph_.values[value].type; }

  // Of two matrices without promotion or broadcasting.
  bool is_addition(const ir::Node& node) const {
    if (node.op->name != "aten.add.Tensor" || !is_one(node, "alpha")) return false;
    const ir::TensorType& type = type_of(node.results[0]);
    if (type.rank() != 2 || !ir::is_float(type.dtype) ||
        !algebra_.is_row_major(type, /*exact=*/false)) {
      return false;
    }
    return std::all_of(node.operands.begin(), node.operands.end(), [&](ValueId operand) {
      const ir::TensorType& other = type_of(operand);
      return other.dtype == type.dtype && other.rank() == 2 &&
             algebra_.equal(other.dims[0], type.dims[0]) &&
             algebra_.equal(other.dims[1], type.dims[1]);
    });
  }

  bool is_term(const ir::Node& node) const {
    if (node.op->name != "aten.mm") return false;
    const ir::Dim depth = type_of(node.operands[1]).dims[0];
    if (depth.is_class() || depth.number() > kMaxDepth ||
        !(depth == type_of(node.operands[0]).dims[1])) {
      return false;
    }
    const std::vector<ir::Dim>& dims = type_of(node.results[0]).dims;
    return std::min(graph_.hint_of(dims[0]), graph_.hint_of(dims[1])) >=
           depth.number() * kMinExtentPerDepth;
  }

  // In the order of their last adds.
  std::vector<Sum> find_sums() const {
    std::vector<Sum> sums;
    std::vector<std::size_t> sum_of(graph_.nodes.size(), SIZE_MAX);
    for (NodeId n = static_cast<NodeId>(graph_.nodes.size()); n-- > 0;) {
      const ir::Node& node = graph_.nodes[n];
      if (!is_addition(node)) continue;
      if (sum_of[n] == SIZE_MAX) {
        sum_of[n] = sums.size();
        sums.emplace_back();
      }
      Sum& sum = sums[sum_of[n]];
      sum.adds.push_back(n);
      for (const ValueId operand : {node.operands[1], node.operands[0]}) {
        const NodeId producer = graph_.values[operand].producer;
        if (producer == kNone || facts_.use_count[operand] != 1) continue;
        if (is_addition(graph_.nodes[producer])) sum_of[producer] = sum_of[n];
        if (is_term(graph_.nodes[producer])) sum.terms.push_back(producer);
      }
    }
    std::reverse(sums.begin(), sums.end());
    for (Sum& sum : sums) {
      std::reverse(sum.adds.begin(), sum.adds.end());
      std::reverse(sum.terms.begin(), sum.terms.end());
    }
    return sums;
  }

  // Addends and factors are read later than before.
  bool touches_written(const Sum& sum) const {
    const auto reads_written = [&](NodeId n) {
      const std::vector<ValueId>& operands = graph_.nodes[n].operands;
      return std::any_of(operands.begin(), operands.end(), [&](ValueId operand) {
        return facts_.is_written[ir::view_root(graph_, operand)];
      });
    };
    return std::any_of(sum.adds.begin(), sum.adds.end(), reads_written) ||
           std::any_of(sum.terms.begin(), sum.terms.end(), reads_written);
  }

  void rewrite(const Sum& sum) {
    const NodeId last = sum.adds.back();
    const ir::TensorType type = type_of(graph_.nodes[last].results[0]);
    const ValueId rest = add_rest(sum);
    const auto [left, right] = join_factors(sum, type);
    if (rest == kNone) {
      become(graph_.nodes[last], "aten.mm", {left, right});
      return;
    }
    const ValueId product = insert(last, "aten.mm", {left, right}, {},
                                   row_major_type(type.dtype, type.dims[0], type.dims[1]));
    become(graph_.nodes[last], "aten.add.Tensor", {product, rest});
  }

  // The sum of the other addends, by the adds that they had, so that none lives longer; kNone where
  // there are none.
  ValueId add_rest(const Sum& sum) {
    for (const NodeId term : sum.terms) reads_[graph_.nodes[term].results[0]] = kNone;
    for (const NodeId n : sum.adds) {
      ir::Node& add = graph_.nodes[n];
      const ValueId a = reads_[add.operands[0]];
      const ValueId b = reads_[add.operands[1]];
      ValueId& out = reads_[add.results[0]];
      if (a == kNone || b == kNone) {
        out = a == kNone ? b : a;
      } else if (n != sum.adds.back()) {
        add.operands = {a, b};
      } else {
        return insert(n, "aten.add.Tensor", {a, b}, {}, type_of(add.results[0]));
      }
    }
    // Its users keep reading the last add.
    const ValueId total = graph_.nodes[sum.adds.back()].results[0];
    return std::exchange(reads_[total], total);
  }

  // The factors of all terms along the contracted dim.
  std::pair<ValueId, ValueId> join_factors(const Sum& sum, const ir::TensorType& type) {
    const NodeId last = sum.adds.back();
    std::vector<ValueId> lefts, rights, bases;
    std::int64_t depth = 0;
    for (const NodeId term : sum.terms) {
      const ir::Node& node = graph_.nodes[term];
      lefts.push_back(node.operands[0]);
      rights.push_back(node.operands[1]);
      depth += type_of(rights.back()).dims[0].number();
      const ValueId base = find_transposed(graph_, lefts.back());
      if (base != kNone) bases.push_back(base);
    }
    const ir::Dim rows = type.dims[0];
    ValueId left = kNone;
    if (bases.size() == lefts.size()) {
      left = insert(last, "aten.cat", std::move(bases), {{"dim", ir::Dim(0)}},
                    row_major_type(type.dtype, depth, rows));
      left = insert(last, "aten.t", {left}, {}, {type.dtype, {rows, depth}, {1, rows}});
    } else {
      left = insert(last, "aten.cat", std::move(lefts), {{"dim", ir::Dim(1)}},
                    row_major_type(type.dtype, rows, depth));
    }
    const ValueId right = insert(last, "aten.cat", std::move(rights), {{"dim", ir::Dim(0)}},
                                 row_major_type(type.dtype, depth, type.dims[1]));
    return {left, right};
  }

  // A node that goes before the node `next`. Called in the order of `next`.
  ValueId insert(NodeId next, std::string_view op, std::vector<ValueId> operands,
                 std::vector<ir::Attribute> attributes, ir::TensorType type) {
    const NodeId n = graph_.add_node(ir::find_op(op), std::move(operands), std::move(attributes),
                                     {std::move(type)});
    graph_.nodes[n].location = graph_.nodes[next].location;
    inserted_before_.push_back(next);
    return graph_.nodes[n].results[0];
  }

  void place_inserted() {
    const std::size_t old_count = graph_.nodes.size() - inserted_before_.size();
    std::vector<ir::Node> nodes;
    nodes.reserve(graph_.nodes.size());
    std::size_t next = 0;
    for (std::size_t n = 0; n < old_count; ++n) {
      for (; next < inserted_before_.size() && inserted_before_[next] == n; ++next)
        nodes.push_back(std::move(graph_.nodes[old_count + next]));
      nodes.push_back(std::move(graph_.nodes[n]));
    }
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      for (const ValueId result : nodes[n].results)
        graph_.values[result].producer = static_cast<NodeId>(n);
    }
    graph_.nodes = std::move(nodes);
  }

  ir::Graph& graph_;
  const ir::DimAlgebra algebra_;
  const GraphFacts facts_;               // of the graph before any rewrite
  std::vector<ValueId> reads_;           // by value: what is left of it without the terms
  std::vector<NodeId> inserted_before_;  // for each node that was added, in order
};

}  // namespace

Status sum_products(ir::Graph& graph) {
  Rewriter(graph).run();
  return {};
}

}  // namespace backplane::passes
