#include "core/runtime/plan/fault_search.h"

#include <algorithm>
#include <utility>

namespace backplane::runtime {

namespace {

// Else it is the device's state or the program's wish, and a part would fare no better.
bool is_about_the_graph(Code code) {
  return code == Code::kUnsupported || code == Code::kInvalidArgument || code == Code::kInternal ||
         code == Code::kDataCorrupt;
}

std::vector<ir::NodeId> without_views(const ir::Graph& graph, std::span<const ir::NodeId> nodes) {
  std::vector<ir::NodeId> out(nodes.begin(), nodes.end());
  std::erase_if(out,
                [&](ir::NodeId n) { return graph.nodes[n].op->op_class == ir::OpClass::kView; });
  return out;
}

}  // namespace

bool FaultSearch::may_ask_for_parts(const BrokenClaim& broken) const {
  const auto is_broken = [&](ir::NodeId n) { return std::ranges::binary_search(broken.nodes, n); };
  return std::ranges::none_of(targets_[broken.target].claims, [&](const partition::Claim& claim) {
    return !claim.divisible && std::ranges::any_of(claim.nodes, is_broken);
  });
}

bool FaultSearch::goes_on(const BrokenClaim& broken) const {
  return trials_left_ > 0 && is_about_the_graph(broken.status.code());
}

// The partition cut in two, of which `part` keeps its number. Nodes are in the order of their ids:
// a run of them is convex.
partition::Cut FaultSearch::cut_around(Nodes part) const {
  partition::Cut cut = *cut_;
  partition::Partition& whole = cut.partitions[partition_];
  partition::Partition rest = whole;
  std::erase_if(rest.nodes, [&](ir::NodeId n) { return std::ranges::binary_search(part, n); });
  whole.nodes.assign(part.begin(), part.end());
  for (const ir::NodeId n : rest.nodes)
    cut.of_node[n] = static_cast<std::uint32_t>(cut.partitions.size());
  cut.partitions.push_back(std::move(rest));
  return cut;
}

bool FaultSearch::compiles(Nodes part, BrokenClaim& broken) {
  --trials_left_;
  const partition::Cut cut = cut_around(part);
  PlanBuilder builder(*scratch_, devices_, targets_, options_, cut);
  if (builder.try_partition(partition_, broken).ok()) return true;
  failed_.assign(part.begin(), part.end());
  return false;
}

// It compiles with the nodes before it, and fails with one more. `nodes` together fail.
void FaultSearch::find_last_of_company(Nodes nodes, BrokenClaim& broken) {
  std::size_t good = 0, bad = nodes.size();
  while (bad - good > 1 && goes_on(broken)) {
    const std::size_t middle = good + (bad - good) / 2;
    (compiles(nodes.first(middle), broken) ? good : bad) = middle;
  }
  if (bad - good > 1 || !is_about_the_graph(broken.status.code())) return;
  broken.nodes = {nodes[bad - 1]};
  broken.status =
      Status(broken.status.code(), broken.status.message() + "; by itself the node compiles");
}

void FaultSearch::search(Nodes nodes, BrokenClaim& broken) {
  Nodes part = nodes;
  while (part.size() > 1 && goes_on(broken)) {
    const Nodes half = part.first(part.size() / 2);
    part = compiles(half, broken) ? part.subspan(half.size()) : half;
  }
  if (part.size() > 1 || !goes_on(broken)) return;
  if (nodes.size() > 1 && compiles(part, broken)) return find_last_of_company(nodes, broken);
  if (!is_about_the_graph(broken.status.code())) return;
  broken.nodes = {part[0]};
  broken.named = broken.nodes;
}

void FaultSearch::find(const ir::Graph& graph, BrokenClaim& broken) {
  const BrokenClaim whole = broken;
  const std::vector<ir::NodeId> nodes = without_views(graph, whole.nodes);
  // Whoever names all says nothing.
  if (broken.named.size() >= nodes.size() && nodes.size() > 1) broken.named.clear();
  if (!broken.named.empty())
    broken.nodes = broken.named;
  else if (may_ask_for_parts(broken))
    search(nodes, broken);
  if (broken.status.code() == Code::kCancelled) return;
  if (broken.nodes.size() > 1 && broken.named.empty()) {
    broken = whole;
    broken.named.clear();
  }
  for (const ir::NodeId n : broken.named)
    devices_[broken.target]->compile_faults().add(graph, n, broken.status);
}

void FaultSearch::narrow(CompiledGraph& scratch, const partition::Cut& cut, BrokenClaim& broken) {
  if (!broken.is_compiled) return;
  scratch_ = &scratch;
  cut_ = &cut;
  partition_ = broken.partition;
  failed_ = cut.partitions[partition_].nodes;
  if (is_about_the_graph(broken.status.code())) find(scratch.graph(), broken);
  const partition::Cut part = cut_around(failed_);
  broken.status =
      Status(broken.status.code(),
             broken.status.message() + PlanBuilder(scratch, devices_, targets_, options_, part)
                                           .keep_for_replay(partition_, broken.status.message()));
}

}  // namespace backplane::runtime
