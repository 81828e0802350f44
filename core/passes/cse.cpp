#include "core/passes/cse.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "core/ir/view.h"
#include "core/passes/rewrite.h"

namespace backplane::passes {
namespace {

class Hasher {
 public:
  void add(std::uint64_t value) {
    hash_ = (hash_ ^ value) * 0x9e3779b97f4a7c15ull;
    hash_ ^= hash_ >> 32;
  }
  void add(std::string_view text) { add(std::hash<std::string_view>{}(text)); }
  void add(ir::Dim dim) {
    add(dim.is_class() ? ~std::uint64_t{dim.class_index()}
                       : static_cast<std::uint64_t>(dim.number()));
  }
  void add(double number) { add(std::bit_cast<std::uint64_t>(number)); }
  void add(std::monostate) { add(std::uint64_t{0}); }
  void add(bool flag) { add(std::uint64_t{flag}); }
  void add(ir::DType dtype) { add(static_cast<std::uint64_t>(dtype)); }
  void add(const std::string& text) { add(std::string_view(text)); }
  template <class T>
  void add(const std::vector<T>& list) {
    add(std::uint64_t{list.size()});
    for (const auto& element : list) add(static_cast<const T&>(element));
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0;
};

std::uint64_t hash_of(const ir::Node& node) {
  Hasher hasher;
  hasher.add(node.op->name);
  for (ir::ValueId operand : node.operands) hasher.add(std::uint64_t{operand});
  for (const ir::Attribute& attribute : node.attributes) {
    hasher.add(attribute.name);
    std::visit([&](const auto& value) { hasher.add(value); }, attribute.value);
  }
  return hasher.value();
}

// Floats by their bits: 0.0 and -0.0 are different arguments.
bool same_value(const ir::AttributeValue& a, const ir::AttributeValue& b) {
  const double* x = std::get_if<double>(&a);
  const double* y = std::get_if<double>(&b);
  if (x != nullptr && y != nullptr) {
    return std::bit_cast<std::uint64_t>(*x) == std::bit_cast<std::uint64_t>(*y);
  }
  const auto* v = std::get_if<std::vector<double>>(&a);
  const auto* w = std::get_if<std::vector<double>>(&b);
  if (v != nullptr && w != nullptr) {
    return std::equal(v->begin(), v->end(), w->begin(), w->end(), [](double i, double j) {
      return std::bit_cast<std::uint64_t>(i) == std::bit_cast<std::uint64_t>(j);
    });
  }
  return a == b;
}

bool same_node(const ir::Graph& graph, const ir::Node& a, const ir::Node& b) {
  return a.op == b.op && a.operands == b.operands && a.list_first == b.list_first &&
         a.list_count == b.list_count &&
         std::equal(a.attributes.begin(), a.attributes.end(), b.attributes.begin(),
                    b.attributes.end(),
                    [](const ir::Attribute& x, const ir::Attribute& y) {
                      return x.name == y.name && same_value(x.value, y.value);
                    }) &&
         std::equal(a.results.begin(), a.results.end(), b.results.begin(), b.results.end(),
                    [&](ir::ValueId x, ir::ValueId y) {
                      return graph.values[x].type == graph.values[y].type &&
                             graph.values[x].is_host_scalar == graph.values[y].is_host_scalar;
                    });
}

}  // namespace

Status cse(ir::Graph& graph) {
  GraphFacts facts(graph);
  std::vector<ir::ValueId> reads(graph.values.size());
  for (ir::ValueId v = 0; v < reads.size(); ++v) reads[v] = v;
  std::unordered_map<std::uint64_t, std::vector<ir::NodeId>> seen;

  for (ir::NodeId n = 0; n < graph.nodes.size(); ++n) {
    ir::Node& node = graph.nodes[n];
    for (ir::ValueId& operand : node.operands) {
      if (operand != ir::kNone) operand = reads[operand];
    }
    if (has_effects(node) || node.results.empty()) continue;
    const auto touches_written = [&](ir::ValueId value) {
      return value != ir::kNone && facts.is_written[ir::view_root(graph, value)];
    };
    if (std::any_of(node.operands.begin(), node.operands.end(), touches_written) ||
        std::any_of(node.results.begin(), node.results.end(), touches_written)) {
      continue;
    }
    std::vector<ir::NodeId>& candidates = seen[hash_of(node)];
    const auto original =
        std::find_if(candidates.begin(), candidates.end(), [&](ir::NodeId candidate) {
          const ir::Node& earlier = graph.nodes[candidate];
          if (!same_node(graph, earlier, node)) return false;
          // Tensors that the caller sees separately must not become one memory.
          for (std::size_t i = 0; i < node.results.size(); ++i) {
            if (facts.is_shown[node.results[i]] && facts.is_shown[earlier.results[i]]) return false;
          }
          return true;
        });
    if (original == candidates.end()) {
      candidates.push_back(n);
      continue;
    }
    const ir::Node& kept = graph.nodes[*original];
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      const ir::ValueId from = node.results[i];
      const ir::ValueId to = kept.results[i];
      reads[from] = to;
      facts.is_shown[to] = facts.is_shown[to] || facts.is_shown[from];
      graph.values[to].is_saved = graph.values[to].is_saved || graph.values[from].is_saved;
    }
  }
  for (ir::ValueId& output : graph.outputs) output = reads[output];
  graph.eliminate_dead();
  return {};
}

}  // namespace backplane::passes
