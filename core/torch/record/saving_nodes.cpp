#include "core/torch/record/saving_nodes.h"

#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace backplane::record {

namespace {

using torch::autograd::Node;

// Some flags for each of many.
class FlagRows {
 public:
  FlagRows(std::size_t rows, std::size_t flags)
      : flags_(flags), words_((flags + 63) / 64), all_(rows * words_) {}

  void set(std::size_t row, std::size_t flag) {
    all_[row * words_ + flag / 64] |= std::uint64_t{1} << (flag % 64);
  }
  void add(std::size_t to, std::size_t from) {
    for (std::size_t w = 0; w < words_; ++w) all_[to * words_ + w] |= all_[from * words_ + w];
  }
  std::vector<bool> of(std::size_t row) const {
    std::vector<bool> flags(flags_);
    for (std::size_t i = 0; i < flags_; ++i)
      flags[i] = (all_[row * words_ + i / 64] >> (i % 64) & 1) != 0;
    return flags;
  }

 private:
  std::size_t flags_, words_;
  std::vector<std::uint64_t> all_;
};

using Rows = std::unordered_map<const Node*, std::size_t>;

// Each behind all that its gradients come to. Histories may be deep.
std::vector<const Node*> nodes_in_order(const std::vector<const Node*>& from) {
  std::vector<const Node*> order;
  std::unordered_set<const Node*> seen;
  std::vector<std::pair<const Node*, std::uint32_t>> pending;  // with the edge to go on at
  for (const Node* const start : from) {
    if (start != nullptr && seen.insert(start).second) pending.emplace_back(start, 0);
    while (!pending.empty()) {
      auto& [node, edge] = pending.back();
      if (edge == node->num_outputs()) {
        order.push_back(node);
        pending.pop_back();
        continue;
      }
      const Node* const next = node->next_edge(edge++).function.get();
      if (next != nullptr && seen.insert(next).second) pending.emplace_back(next, 0);
    }
  }
  return order;
}

// By row.
std::vector<std::set<ValueNumber>> saved_by_nodes(const Tape& tape, std::size_t value_count,
                                                  std::span<const ValueNumber> tangents,
                                                  const Rows& rows) {
  std::vector<bool> may_be_saved(value_count, true);
  for (const ValueNumber tangent : tangents) may_be_saved[tangent] = false;
  std::vector<std::set<ValueNumber>> saved(rows.size());
  for (const Call& call : tape.calls) {
    const auto found = rows.find(call.made_by);
    if (found == rows.end()) continue;
    for (const ValueNumber v : call.operands)
      if (v < value_count && may_be_saved[v]) saved[found->second].insert(v);
  }
  return saved;
}

}  // namespace

std::vector<SavingNode> find_saving_nodes(const Tape& tape, std::size_t value_count,
                                          std::span<const ValueNumber> tangents,
                                          const HistoryEnds& ends) {
  const std::vector<const Node*> order = nodes_in_order(ends.outputs);
  Rows rows;
  for (const Node* const node : order) rows.emplace(node, rows.size());
  FlagRows behind(rows.size(), ends.outputs.size()), before(rows.size(), ends.leaves.size());
  const auto mark = [&](FlagRows& flags, const std::vector<const Node*>& nodes) {
    for (std::size_t i = 0; i < nodes.size(); ++i)
      if (const auto found = rows.find(nodes[i]); found != rows.end()) flags.set(found->second, i);
  };
  mark(behind, ends.outputs);
  mark(before, ends.leaves);
  const auto for_each_next = [&](std::size_t row, const auto& visit) {
    for (const torch::autograd::Edge& edge : order[row]->next_edges())
      if (edge.is_valid()) visit(rows.at(edge.function.get()));
  };
  for (std::size_t row = 0; row < order.size(); ++row)
    for_each_next(row, [&](std::size_t next) { before.add(row, next); });
  for (std::size_t row = order.size(); row-- > 0;)
    for_each_next(row, [&](std::size_t next) { behind.add(next, row); });

  const std::vector<std::set<ValueNumber>> saved =
      saved_by_nodes(tape, value_count, tangents, rows);
  std::map<std::pair<std::vector<bool>, std::vector<bool>>, std::set<ValueNumber>> alike;
  for (std::size_t row = 0; row < order.size(); ++row)
    if (!saved[row].empty())
      alike[{behind.of(row), before.of(row)}].insert(saved[row].begin(), saved[row].end());
  std::vector<SavingNode> found;
  for (const auto& [ends_of_way, values] : alike)
    found.push_back({ends_of_way.first, ends_of_way.second, {values.begin(), values.end()}});
  return found;
}

}  // namespace backplane::record
