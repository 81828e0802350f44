// Passes: one rewrite per file pair, each a free function; pipelines by name.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace backplane::passes {

struct PassInfo {
  std::string_view name;     // "recompose-linear"
  std::string_view summary;  // one sentence, also the tool's help
  Status (*run)(ir::Graph& graph);
};
std::span<const PassInfo> all_passes();

// Runs a comma-separated list of pass or pipeline names. Compile uses "canonicalize", which keeps
// eager's bits, where ATen runs the whole graph, and "optimize" where plugins take part.
// The verifier runs after each pass; `after_each` (may be empty) sees the graph after each one.
Status run_pipeline(
    ir::Graph& graph, std::string_view pipeline,
    const std::function<void(std::string_view pass, const ir::Graph&)>& after_each = {});

}  // namespace backplane::passes
