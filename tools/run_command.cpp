#include "tools/run_command.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iomanip>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <vector>

#include "core/ir/text.h"
#include "core/ir/view.h"
#include "sdk/conformance/src/elements.h"
#include "sdk/conformance/src/graph_run.h"
#include "tools/arguments.h"
#include "tools/plugin_device.h"
#include "tools/text_file.h"

namespace backplane::tools {

namespace {

using namespace conformance;

constexpr const char* kUsage =
    "usage: backplane-run FILE|- [--plugin NAME[:INDEX]] [--plugin-path DIR]... [--compare "
    "NAME[:INDEX]]\n"
    "                     [--seed N] [--repeat N] [--print-plan] [--sizes s0=4,s1=8]\n"
    "Runs the graph on the plugin (default: reference) with random inputs; every node must be "
    "claimed.\n"
    "--compare   runs it on another one too; exits with 1 where results differ beyond rounding\n"
    "--repeat    times that many calls\n"
    "--sizes     values of dim classes; default: their hints\n";

struct Options {
  std::string file, plugin = "reference", compare, sizes;
  std::vector<std::string> plugin_paths;
  std::int64_t seed = 1, repeat = 0;
  bool print_plan = false;
};

// "s0=4,s1=8"
Result<std::map<std::string, std::int64_t>> parse_sizes(const std::string& text) {
  std::map<std::string, std::int64_t> out;
  std::stringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const std::size_t equals = item.find('=');
    std::int64_t value = 0;
    const char* end = item.data() + item.size();
    const char* begin = equals == std::string::npos ? end : item.data() + equals + 1;
    const auto [stop, error] = std::from_chars(begin, end, value);
    if (error != std::errc() || stop != end || value < 0)
      return Status(Code::kInvalidArgument, "--sizes " + item + ": want NAME=NUMBER.");
    out[item.substr(0, equals)] = value;
  }
  return out;
}

struct Run {
  std::unique_ptr<GraphRun> run;
  std::vector<void*> inputs;
  GraphRun::Results results;

  Status call() { return run->call(inputs, results); }
};

Result<std::unique_ptr<Run>> start(const ir::Graph& graph, const std::string& name,
                                   const Options& options, std::vector<Bytes>& inputs,
                                   const Sizes& classes) {
  BP_ASSIGN_OR_RETURN(runtime::Device* const device, open_device(name, options.plugin_paths));
  auto run = std::make_unique<Run>();
  for (Bytes& input : inputs) run->inputs.push_back(input.data());
  BP_ASSIGN_OR_RETURN(run->run, GraphRun::make(graph, *device, nullptr, classes, run->inputs));
  BP_RETURN_IF_ERROR(run->call());
  return run;
}

void print_output(std::ostream& out, std::size_t i, const ir::TensorType& type,
                  const Sizes& classes, const Bytes& bytes) {
  constexpr std::size_t kShown = 8;
  out << "output " << i << ": " << ir::dtype_name(type.dtype) << "[";
  const Sizes dims = ir::resolve(type.dims, classes);
  for (std::size_t d = 0; d < dims.size(); ++d) out << (d != 0 ? ", " : "") << dims[d];
  out << "] checksum " << std::hex << std::setw(16) << std::setfill('0') << checksum(bytes)
      << std::dec;
  const auto element = static_cast<std::size_t>(ir::dtype_bytes(type.dtype));
  for (std::size_t n = 0; n < kShown && (n + 1) * element <= bytes.size(); ++n)
    out << " " << print_number(type.dtype, read_number(type.dtype, bytes.data() + n * element));
  out << (bytes.size() > kShown * element ? " ...\n" : "\n");
}

Status time_calls(std::ostream& out, Run& run, std::int64_t repeat) {
  std::vector<double> micros;
  for (std::int64_t i = 0; i < repeat; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    BP_RETURN_IF_ERROR(run.call());
    micros.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::ranges::sort(micros);
  out << "time: " << micros.size() << " calls, best " << micros.front() << " us, median "
      << micros[micros.size() / 2] << " us, worst " << micros.back() << " us\n";
  return {};
}

// Whether all results agree.
Result<bool> run(const Options& options, std::ostream& out) {
  BP_ASSIGN_OR_RETURN(const std::string text, read_text(options.file));
  BP_ASSIGN_OR_RETURN(const ir::Graph graph, ir::parse(text));
  BP_ASSIGN_OR_RETURN(auto given, parse_sizes(options.sizes));
  BP_ASSIGN_OR_RETURN(const Sizes classes, class_values(graph, std::move(given)));
  std::mt19937 generator(static_cast<std::mt19937::result_type>(options.seed));
  std::vector<Bytes> inputs;
  for (const ir::ValueId input : graph.inputs) {
    Bytes& memory = inputs.emplace_back(memory_bytes(graph, input, classes));
    fill_random(graph.values[input].type.dtype, memory, generator);
  }
  BP_ASSIGN_OR_RETURN(const auto first, start(graph, options.plugin, options, inputs, classes));
  if (options.print_plan) out << first->run->compiled().print_plan();
  for (std::size_t i = 0; i < graph.outputs.size(); ++i)
    print_output(out, i, graph.values[graph.outputs[i]].type, classes, first->results.output(i));
  if (options.repeat > 0) BP_RETURN_IF_ERROR(time_calls(out, *first, options.repeat));
  if (options.compare.empty()) return true;

  BP_ASSIGN_OR_RETURN(const auto second, start(graph, options.compare, options, inputs, classes));
  bool equal = true;
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const Difference difference = compare(graph.values[graph.outputs[i]].type.dtype,
                                          first->results.output(i), second->results.output(i));
    equal = equal && difference.within;
    out << "compare " << i << ": max absolute error " << difference.absolute << ", relative "
        << difference.relative << (difference.within ? "\n" : ", beyond the tolerance\n");
  }
  if (options.repeat > 0) BP_RETURN_IF_ERROR(time_calls(out, *second, options.repeat));
  return equal;
}

}  // namespace

int run_command(std::span<const std::string> arguments, std::ostream& out, std::ostream& error) {
  if (asks_for_help(arguments)) {
    out << kUsage;
    return 0;
  }
  Options options;
  Arguments known;
  known.add_value("--plugin", take_text(options.plugin));
  known.add_value("--compare", take_text(options.compare));
  known.add_value("--sizes", take_text(options.sizes));
  known.add_value("--seed", take_number(options.seed, 0));
  known.add_value("--repeat", take_number(options.repeat, 1));
  known.add_switch("--print-plan", options.print_plan);
  known.add_value("--plugin-path", [&](std::string_view value) -> std::string {
    options.plugin_paths.emplace_back(value);
    return {};
  });
  Status status = known.parse(arguments, options.file);
  if (status.ok() && options.file.empty()) status = Status(Code::kInvalidArgument, "no file");
  if (!status.ok()) {
    error << "backplane-run: " << status.message() << "\n" << kUsage;
    return 2;
  }
  const Result<bool> equal = run(options, out);
  if (!equal.ok()) {
    const std::string place = options.file == "-" ? "standard input" : options.file;
    error << "backplane-run: " << place << ": " << equal.status().to_string() << "\n";
    return 1;
  }
  return *equal ? 0 : 1;
}

}  // namespace backplane::tools
