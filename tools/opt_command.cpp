#include "tools/opt_command.h"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <vector>

#include "core/ir/text.h"
#include "core/ir/verifier.h"
#include "core/partition/partition.h"
#include "core/passes/pass.h"
#include "core/runtime/plugin/claims.h"
#include "core/runtime/plugin/graph_arrays.h"
#include "tools/arguments.h"
#include "tools/plugin_device.h"
#include "tools/text_file.h"

namespace backplane::tools {

namespace {

constexpr const char* kUsage =
    "usage: backplane-opt FILE|- [--pipeline=a,b] [--print-after-all] [--verify-only]\n"
    "                     [--plugin NAME[:INDEX]]... [--plugin-path DIR]...\n"
    "       backplane-opt --list-passes\n"
    "With --plugin, the word \"partition\" in the pipeline prints what the plugins get of the "
    "graph.\n";

struct Options {
  std::string file, pipeline;
  std::vector<std::string> plugins, plugin_paths;
  bool print_after_all = false, verify_only = false, list_passes = false;
};

// As comments, so that the output still is a graph.
Status print_partitions(const ir::Graph& graph, const Options& options, std::ostream& out) {
  if (options.plugins.empty())
    return {Code::kInvalidArgument, "The stage partition needs --plugin NAME."};
  std::vector<std::string> labels;
  std::vector<partition::Target> targets;
  const runtime::GraphArrays arrays(graph);
  for (const std::string& name : options.plugins) {
    BP_ASSIGN_OR_RETURN(runtime::Device* const device, open_device(name, options.plugin_paths));
    BP_ASSIGN_OR_RETURN(partition::Target target, runtime::query_claims(*device, graph, arrays));
    labels.push_back(device->label());
    targets.push_back(std::move(target));
  }
  BP_ASSIGN_OR_RETURN(const partition::Cut cut, partition::cut(graph, targets, {}));
  for (std::size_t i = 0; i < cut.partitions.size(); ++i) {
    const partition::Partition& part = cut.partitions[i];
    out << "// partition " << i << " on "
        << (part.target == partition::kHost ? "host" : labels[part.target]) << "\n";
    for (const ir::NodeId node : part.nodes) out << "//   " << ir::print_node(graph, node) << "\n";
  }
  for (std::size_t t = 0; t < targets.size(); ++t)
    for (const partition::Refusal& refusal : targets[t].refusals)
      out << "// " << labels[t] << " refuses " << ir::print_node(graph, refusal.node) << ": "
          << refusal.text << "\n";
  out << "// predicted " << cut.predicted_ns / 1000 << " us, transfers "
      << cut.predicted_transfer_ns / 1000 << " us of them\n";
  return {};
}

Status run_pipeline(ir::Graph& graph, const Options& options, std::ostream& out) {
  const auto print_after = [&](std::string_view pass, const ir::Graph& after) {
    if (options.print_after_all)
      out << "// after " << pass << "\n" << ir::print(after) << "// -----\n";
  };
  std::string passes;  // those before the next "partition"
  const auto run_passes = [&] {
    return passes::run_pipeline(graph, std::exchange(passes, {}), print_after);
  };
  std::stringstream words(options.pipeline);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "partition") {
      BP_RETURN_IF_ERROR(run_passes());
      BP_RETURN_IF_ERROR(print_partitions(graph, options, out));
    } else {
      passes += (passes.empty() ? "" : ",") + word;
    }
  }
  return run_passes();
}

Status run(const Options& options, std::ostream& out) {
  if (options.list_passes) {
    constexpr std::size_t kColumn = 20;
    for (const passes::PassInfo& pass : passes::all_passes())
      out << pass.name
          << std::string(kColumn - std::min<std::size_t>(pass.name.size(), kColumn - 1), ' ')
          << pass.summary << "\n";
    return {};
  }
  BP_ASSIGN_OR_RETURN(const std::string text, read_text(options.file));
  BP_ASSIGN_OR_RETURN(ir::Graph graph, ir::parse(text));
  if (options.verify_only) return ir::verify(graph);
  BP_RETURN_IF_ERROR(run_pipeline(graph, options, out));
  out << ir::print(graph);
  return {};
}

}  // namespace

int opt_command(std::span<const std::string> arguments, std::ostream& out, std::ostream& error) {
  if (asks_for_help(arguments)) {
    out << kUsage;
    return 0;
  }
  Options options;
  Arguments known;
  const auto append = [](std::vector<std::string>& list) {
    return [&list](std::string_view value) -> std::string {
      list.emplace_back(value);
      return {};
    };
  };
  known.add_value("--pipeline", take_text(options.pipeline));
  known.add_value("--plugin", append(options.plugins));
  known.add_value("--plugin-path", append(options.plugin_paths));
  known.add_switch("--print-after-all", options.print_after_all);
  known.add_switch("--verify-only", options.verify_only);
  known.add_switch("--list-passes", options.list_passes);
  Status status = known.parse(arguments, options.file);
  if (status.ok() && options.file.empty() && !options.list_passes)
    status = Status(Code::kInvalidArgument, "no file");
  if (!status.ok()) {
    error << "backplane-opt: " << status.message() << "\n" << kUsage;
    return 2;
  }
  status = run(options, out);
  if (status.ok()) return 0;
  const std::string place = options.file == "-" ? "standard input" : options.file;
  error << "backplane-opt: " << place << ": " << status.to_string() << "\n";
  return 1;
}

}  // namespace backplane::tools
