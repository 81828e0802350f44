#include "core/runtime/plan/compiled_graph.h"

#include <algorithm>
#include <chrono>

#include "core/base/log.h"
#include "core/ir/text.h"
#include "core/ir/verifier.h"
#include "core/ir/view.h"
#include "core/runtime/plan/call_frame.h"
#include "core/runtime/plan/fault_search.h"
#include "core/runtime/plan/memory_check.h"
#include "core/runtime/plan/plan_builder.h"
#include "core/runtime/plan/replay.h"
#include "core/runtime/plugin/claims.h"
#include "core/runtime/plugin/graph_arrays.h"
#include "core/runtime/plugin/plugin.h"

namespace backplane::runtime {

namespace {

constexpr std::size_t kShownNodes = 12;

// A view of a weight is a weight; but a pack has one size, so what follows the sizes of a call is
// none.
void propagate_static(ir::Graph& graph) {
  for (ir::ValueId id = 0; id < graph.values.size(); ++id) {
    const ir::ValueId root = ir::view_root(graph, id);
    const bool is_static = graph.values[root].is_static;
    graph.values[id].is_static = is_static && !ir::depends_on_classes(graph, id);
  }
}

bool is_claimed(const partition::Target& target, ir::NodeId node) {
  return std::ranges::any_of(target.claims, [&](const partition::Claim& claim) {
    return std::binary_search(claim.nodes.begin(), claim.nodes.end(), node);
  });
}

// Views are metadata to a plan: partitions of nothing else go, and the runs of one target that they
// parted become one, if it takes those views. A target with atomic claims keeps its partitions
// apart.
void merge_runs(const ir::Graph& graph, const std::vector<partition::Target>& targets,
                partition::Cut& cut) {
  const auto is_view = [&](ir::NodeId n) {
    return graph.nodes[n].op->op_class == ir::OpClass::kView;
  };
  const auto is_atomic = [&](partition::TargetId target) {
    return target != partition::kHost &&
           std::ranges::any_of(targets[target].claims, [](const auto& c) { return !c.divisible; });
  };
  const auto takes = [&](partition::TargetId target, ir::NodeId n) {
    return target == partition::kHost || is_claimed(targets[target], n);
  };
  std::vector<partition::Partition> merged;
  std::vector<ir::NodeId> between;  // views since the last partition that stays
  for (partition::Partition& p : cut.partitions) {
    if (std::ranges::all_of(p.nodes, is_view)) {
      between.insert(between.end(), p.nodes.begin(), p.nodes.end());
      continue;
    }
    const bool joins =
        !merged.empty() && merged.back().target == p.target && !is_atomic(p.target) &&
        std::ranges::all_of(between, [&](ir::NodeId n) { return takes(p.target, n); });
    between.clear();
    if (joins) {
      partition::Partition& last = merged.back();
      last.nodes.insert(last.nodes.end(), p.nodes.begin(), p.nodes.end());
      std::sort(last.nodes.begin(), last.nodes.end());
      last.predicted_ns += p.predicted_ns;
    } else {
      merged.push_back(std::move(p));
    }
  }
  cut.partitions = std::move(merged);
  for (std::uint32_t i = 0; i < cut.partitions.size(); ++i)
    for (const ir::NodeId n : cut.partitions[i].nodes) cut.of_node[n] = i;
}

// Takes nodes back from a target that could not keep its promise, and those that it will not keep
// it for either.
void withdraw(const Device& device, const ir::Graph& graph, const BrokenClaim& broken,
              partition::Target& target) {
  std::vector<std::string> reasons(graph.nodes.size());
  for (const ir::NodeId n : broken.nodes) reasons[n] = "compile failed: " + broken.status.message();
  take_back(target, std::move(reasons));
  take_back_faulty(device, graph, target);
}

}  // namespace

CompiledGraph::CompiledGraph(ir::Graph graph)
    : graph_(std::move(graph)), idle_frames_(std::make_shared<IdleFrames>()) {}
// A device that trims may hold the list for longer; frames refer to the graph.
CompiledGraph::~CompiledGraph() { idle_frames_->clear(); }

Result<std::unique_ptr<CompiledGraph>> CompiledGraph::compile(
    ir::Graph graph, const std::vector<Device*>& devices, const CompileOptions& options,
    std::span<const std::string> integer_arguments) {
  const auto start = std::chrono::steady_clock::now();
  BP_ASSIGN_OR_RETURN(const bool checks_memory, memory_checks());
  // On a device already: there is nothing to bring there once and keep.
  if (options.residence.device != nullptr && is_place(*options.residence.device))
    for (std::size_t i = 0; i < graph.inputs.size(); ++i)
      if (options.residence.inputs[i]) graph.values[graph.inputs[i]].is_static = false;
  propagate_static(graph);
  BP_RETURN_IF_ERROR(ir::verify(graph));
  BP_ASSIGN_OR_RETURN(ir::DimProgram dim_program, ir::DimProgram::build(graph, integer_arguments));

  std::vector<partition::Target> targets;
  {
    const GraphArrays arrays(graph);
    for (Device* device : devices) {
      BP_ASSIGN_OR_RETURN(partition::Target target, query_claims(*device, graph, arrays));
      for (const Withdrawal& withdrawal : options.withdrawals) {
        if (withdrawal.device != device) continue;
        std::vector<std::string> reasons(graph.nodes.size());
        for (const ir::NodeId n : withdrawal.nodes) reasons[n] = withdrawal.reason;
        take_back(target, std::move(reasons));
      }
      targets.push_back(std::move(target));
    }
  }
  FaultSearch faults(devices, targets, options);
  for (;;) {
    BP_ASSIGN_OR_RETURN(partition::Cut cut, partition::cut(graph, targets, options.partition));
    merge_runs(graph, targets, cut);
    std::unique_ptr<CompiledGraph> made(new CompiledGraph(graph));
    made->dim_program_ = dim_program;
    made->checks_memory_ = checks_memory;
    BrokenClaim broken;
    const Status status = PlanBuilder(*made, devices, targets, options, cut).build(broken);
    if (!status.ok()) {
      if (broken.nodes.empty() || status.code() == Code::kCancelled) return status;
      faults.narrow(*made, cut, broken);
      if (broken.status.code() == Code::kCancelled || broken.status.code() == Code::kOutOfMemory)
        return broken.status;
      const std::size_t count = broken.nodes.size();
      log(LogLevel::kWarning, std::to_string(count) + (count == 1 ? " node goes" : " nodes go") +
                                  " back to the CPU: " + broken.status.message());
      withdraw(*devices[broken.target], graph, broken, targets[broken.target]);
      continue;
    }
    std::vector<bool> on_plugin(graph.nodes.size(), false);
    for (const auto& report : made->reports_)
      for (const ir::NodeId n : report->nodes) on_plugin[n] = true;
    for (std::size_t t = 0; t < targets.size(); ++t)
      for (const partition::Refusal& r : targets[t].refusals)
        if (!on_plugin[r.node]) made->refusals_.push_back({r.node, devices[t]->label(), r.text});
    for (std::size_t i = 1; i < made->places_.size(); ++i)
      made->places_[i]->add_trim_hook(&IdleFrames::trim, std::weak_ptr<void>(made->idle_frames_));
    made->compile_ns_ =
        std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    if (log_enabled("graph")) log_topic("graph", ir::print(made->graph_));
    if (log_enabled("plan")) log_topic("plan", made->print_plan());
    return made;
  }
}

Result<std::shared_ptr<const CompiledGraph::PackSet>> CompiledGraph::packs(
    std::span<StaticTensor> tensors) {
  BP_RETURN_IF_ERROR(check_process());
  if (tensors.size() != pack_wishes_.size())
    return Status(Code::kInvalidArgument, "The graph packs " + std::to_string(pack_wishes_.size()) +
                                              " static inputs; given were " +
                                              std::to_string(tensors.size()) + ".");
  const std::uint64_t epoch = PackCache::instance().epoch();
  std::shared_ptr<const PackSet> current;
  {
    const std::lock_guard lock(mutex_);
    if (packs_epoch_ == epoch) current = packs_;
  }
  const bool exact = exact_weight_checks();
  std::vector<std::size_t> stale;
  for (std::size_t i = 0; i < pack_wishes_.size(); ++i) {
    const PackWish& wish = pack_wishes_[i];
    StaticTensor& tensor = tensors[i];
    if (wish.offset_bytes != 0)
      tensor.data = static_cast<const char*>(tensor.data) + wish.offset_bytes;
    tensor.dtype = wish.dtype;
    tensor.dims = wish.dims;
    tensor.strides = wish.strides;
    if (!current || !(*current)[i] || !(*current)[i]->matches(tensor, exact)) stale.push_back(i);
  }
  if (stale.empty()) return current ? current : std::make_shared<const PackSet>();

  PackSet renewed = current ? *current : PackSet(pack_wishes_.size());
  for (const std::size_t i : stale) renewed[i].reset();
  if (current) {
    // The old packs go before the new ones come; those of calls in flight live on until they end.
    auto rest = std::make_shared<const PackSet>(renewed);
    {
      const std::lock_guard lock(mutex_);
      if (packs_ == current) packs_.swap(rest);
    }
    current.reset();
  }
  for (const std::size_t i : stale) {
    const PackWish& wish = pack_wishes_[i];
    BP_ASSIGN_OR_RETURN(renewed[i],
                        PackCache::instance().get(*wish.device, tensors[i], wish.layout));
  }
  auto done = std::make_shared<const PackSet>(std::move(renewed));
  auto before = done;
  const std::lock_guard lock(mutex_);
  packs_.swap(before);
  packs_epoch_ = epoch;
  return done;
}

std::string CompiledGraph::keep_for_replay(std::size_t partition,
                                           std::span<const std::int64_t> class_values,
                                           const std::string& message) const {
  const CompiledPartition& p = partitions_[partition];
  const PartitionReport& report = *reports_[p.report];
  std::vector<ir::ValueId> inputs, outputs;
  for (const Bound& bound : p.inputs) inputs.push_back(bound.value);
  for (const Bound& bound : p.outputs) outputs.push_back(bound.value);
  return runtime::keep_for_replay(
      {graph_, report.nodes, inputs, outputs, class_values, report.device, message});
}

Withdrawal CompiledGraph::withdrawal_of(std::size_t partition, const std::string& reason) const {
  const CompiledPartition& p = partitions_[partition];
  return {p.device, reports_[p.report]->nodes, reason};
}

std::size_t CompiledGraph::plugin_node_count() const {
  std::size_t count = 0;
  for (const auto& report : reports_)
    for (const ir::NodeId n : report->nodes)
      if (graph_.nodes[n].op->op_class != ir::OpClass::kView) ++count;
  return count;
}

std::size_t CompiledGraph::fallback_node_count() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(steps_, [](const Step& s) { return s.kind == StepKind::kFallback; }));
}

std::string CompiledGraph::print_plan() const {
  const auto place = [&](std::uint32_t p) { return p == 0 ? "host" : places_[p]->label(); };
  const auto slot = [&](std::uint32_t s) {
    return "%" + graph_.values[slots_[s].root].name + "@" + place(slots_[s].place);
  };
  std::string out = "plan " + graph_.name + "\n";
  for (const Step& step : steps_) {
    switch (step.kind) {
      case StepKind::kUpload:
      case StepKind::kDownload:
        out += "  copy " + slot(step.index) + " -> " + slot(step.target) + "  (" +
               std::string(copy_cause_name(step.cause)) + ")\n";
        break;
      case StepKind::kExecute: {
        const CompiledPartition& p = partitions_[step.index];
        out += "  execute #" + std::to_string(step.index) + " on " + p.device->label() + ": " +
               std::to_string(reports_[p.report]->nodes.size()) + " nodes, " +
               std::to_string(p.inputs.size()) + " in, " + std::to_string(p.outputs.size()) +
               " out\n";
        break;
      }
      case StepKind::kFallback:
        out += "  aten " + ir::print_node(graph_, step.index) + "\n";
        break;
    }
  }
  return out;
}

std::string CompiledGraph::value_text(ir::ValueId value) const {
  const ir::Value& v = graph_.values[value];
  std::string out = "%" + v.name;
  if (v.producer != ir::kNone)
    out += " of node " + std::to_string(v.producer) + " (" +
           std::string(graph_.nodes[v.producer].op->name) + ")";
  return out;
}

std::string CompiledGraph::step_text(std::uint32_t step) const {
  const CompiledGraph::Step& s = steps_[step];
  const std::string number = "step " + std::to_string(step) + " of " + graph_.name;
  const auto node = [&](ir::NodeId n) {
    return std::to_string(n) + " " + std::string(graph_.nodes[n].op->name);
  };
  switch (s.kind) {
    case CompiledGraph::StepKind::kUpload:
    case CompiledGraph::StepKind::kDownload:
      return number + ", a copy of " + value_text(slots_[s.index].root);
    case CompiledGraph::StepKind::kFallback:
      return number + ", node " + node(s.index) + " on aten";
    case CompiledGraph::StepKind::kExecute:
      break;
  }
  const PartitionReport& report = *reports_[partitions_[s.index].report];
  std::string out = number + " on " + report.device + ": nodes ";
  for (std::size_t i = 0; i < std::min(report.nodes.size(), kShownNodes); ++i)
    out += (i == 0 ? "" : ", ") + node(report.nodes[i]);
  if (report.nodes.size() > kShownNodes)
    out += " and " + std::to_string(report.nodes.size() - kShownNodes) + " more";
  return out;
}

}  // namespace backplane::runtime
