#include "core/partition/min_cut.h"

#include <cmath>
#include <limits>
#include <vector>

#include <boost/graph/boykov_kolmogorov_max_flow.hpp>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/property_map/property_map.hpp>

namespace backplane::partition {
namespace {

using Network =
    boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, boost::no_property,
                                       boost::no_property, std::uint32_t, std::uint32_t>;
using NetworkEdge = boost::graph_traits<Network>::edge_descriptor;

// Costs become integers, so that the flow is exact: the sum of all is near 2^60, far below the
// overflow and with a resolution finer than the doubles they come from are accurate.
constexpr int kSumBits = 60;

double scale_for(double sum) {
  if (!(sum > 0)) return 1;
  return std::ldexp(1.0, kSumBits - 1 - std::ilogb(sum));
}

}  // namespace

void CutProblem::add_cost(Variable keep, Variable change, double cost) {
  if (cost > 0 && keep != change) arcs_.push_back({keep, change, cost});
}

void CutProblem::add_rule(Variable keep, Variable change) {
  if (keep != change) arcs_.push_back({keep, change, std::numeric_limits<double>::infinity()});
}

std::vector<bool> CutProblem::solve() const {
  double sum = 0;
  for (const Arc& arc : arcs_) {
    if (std::isfinite(arc.cost)) sum += arc.cost;
  }
  const double scale = scale_for(sum);
  constexpr std::int64_t kForbidden = std::int64_t{1} << (kSumBits + 1);

  // Each arc becomes two opposite edges; edges are placed grouped by their tail, in arc order.
  std::vector<std::uint32_t> next(variable_count_ + 1, 0);
  for (const Arc& arc : arcs_) {
    ++next[arc.from + 1];
    ++next[arc.to + 1];
  }
  for (std::size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
  const std::size_t edge_count = 2 * arcs_.size();
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ends(edge_count);
  std::vector<std::int64_t> capacity(edge_count, 0), residual(edge_count, 0);
  std::vector<NetworkEdge> reverse(edge_count);
  for (const Arc& arc : arcs_) {
    const std::uint32_t forward = next[arc.from]++;
    const std::uint32_t backward = next[arc.to]++;
    ends[forward] = {arc.from, arc.to};
    ends[backward] = {arc.to, arc.from};
    capacity[forward] =
        std::isfinite(arc.cost) ? static_cast<std::int64_t>(arc.cost * scale) : kForbidden;
    reverse[forward] = NetworkEdge(arc.to, backward);
    reverse[backward] = NetworkEdge(arc.from, forward);
  }
  const Network network(boost::edges_are_sorted, ends.begin(), ends.end(), variable_count_);

  const auto edge_index = boost::get(boost::edge_index, network);
  const auto vertex_index = boost::get(boost::vertex_index, network);
  std::vector<NetworkEdge> predecessor(variable_count_);
  std::vector<boost::default_color_type> color(variable_count_);
  std::vector<std::uint32_t> distance(variable_count_, 0);
  boost::boykov_kolmogorov_max_flow(
      network, boost::make_iterator_property_map(capacity.begin(), edge_index),
      boost::make_iterator_property_map(residual.begin(), edge_index),
      boost::make_iterator_property_map(reverse.begin(), edge_index),
      boost::make_iterator_property_map(predecessor.begin(), vertex_index),
      boost::make_iterator_property_map(color.begin(), vertex_index),
      boost::make_iterator_property_map(distance.begin(), vertex_index), vertex_index,
      std::uint32_t{kKeepSide}, std::uint32_t{kChangeSide});

  // Only what can still reach the change side has to be on it.
  std::vector<bool> changes(variable_count_, false);
  std::vector<Variable> pending = {kChangeSide};
  changes[kChangeSide] = true;
  while (!pending.empty()) {
    const Variable v = pending.back();
    pending.pop_back();
    const auto [begin, end] = boost::out_edges(v, network);
    for (auto it = begin; it != end; ++it) {
      const Variable u = static_cast<Variable>(boost::target(*it, network));
      if (changes[u] || residual[reverse[(*it).idx].idx] <= 0) continue;
      changes[u] = true;
      pending.push_back(u);
    }
  }
  return changes;
}

}  // namespace backplane::partition
