// A graph compiled for one device and called on host memory, as a framework would do it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/runtime/plan/compiled_graph.h"

namespace backplane::conformance {

using Bytes = std::vector<std::uint8_t>;
using Sizes = std::vector<std::int64_t>;

// Values of the dim classes: as `given` by name, else computed, else the hint.
Result<Sizes> class_values(const ir::Graph& graph, std::map<std::string, std::int64_t> given);

// From the first to past the last element.
std::size_t memory_bytes(const ir::Graph& graph, ir::ValueId value, const Sizes& classes);

class GraphRun {
 public:
  // Nodes that `device` leaves run on `fallback`; without one they are an error that lists them.
  // Static inputs are packed as they lie at `inputs` now.
  static Result<std::unique_ptr<GraphRun>> make(const ir::Graph& graph, runtime::Device& device,
                                                runtime::Device* fallback, Sizes classes,
                                                std::span<void* const> inputs);
  GraphRun(const GraphRun&) = delete;
  GraphRun& operator=(const GraphRun&) = delete;

  // The memory of one call's results.
  class Results;
  // Any thread, several at a time, each with results of its own.
  Status call(std::span<void* const> inputs, Results& results);

  const runtime::CompiledGraph& compiled() const { return *compiled_; }

 private:
  class NodeRunner;
  GraphRun(std::unique_ptr<runtime::CompiledGraph> compiled, runtime::Device* fallback,
           Sizes classes)
      : compiled_(std::move(compiled)), fallback_(fallback), classes_(std::move(classes)) {}
  Status prepare(std::span<void* const> inputs);
  Result<GraphRun*> run_of(ir::NodeId node, std::span<const ir::ValueId> operands,
                           std::span<const ir::ValueId> results);

  std::unique_ptr<runtime::CompiledGraph> compiled_;
  runtime::Device* fallback_;
  Sizes classes_;
  std::unique_ptr<const runtime::Plan> plan_;
  std::shared_ptr<const runtime::CompiledGraph::PackSet> packs_;
  std::mutex mutex_;  // guards node_runs_
  std::map<ir::NodeId, std::unique_ptr<GraphRun>> node_runs_;
};

class GraphRun::Results {
 public:
  // Output i, dense in row-major order.
  Bytes output(std::size_t i) const;
  // Where it lies, in the strides of its type.
  const std::uint8_t* address(std::size_t i) const;

 private:
  friend class GraphRun;
  const GraphRun* run_ = nullptr;
  std::vector<void*> inputs_;
  std::vector<Bytes> memory_;                 // by export, those that the plugin writes
  std::map<ir::ValueId, void*> fallback_at_;  // roots that fallbacks made
  std::deque<std::unique_ptr<Results>> kept_;
};

}  // namespace backplane::conformance
