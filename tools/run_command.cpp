#include "tools/run_command.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <iomanip>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <vector>

#include "core/ir/expression.h"
#include "core/ir/text.h"
#include "core/ir/view.h"
#include "core/runtime/plan/compiled_graph.h"
#include "tools/arguments.h"
#include "tools/elements.h"
#include "tools/plugin_device.h"
#include "tools/text_file.h"

namespace backplane::tools {

namespace {

using runtime::CompiledGraph;
using runtime::Device;
using Bytes = std::vector<std::uint8_t>;
using Sizes = std::vector<std::int64_t>;

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

std::optional<std::int64_t> evaluate(const std::vector<ir::ExpressionStep>& steps,
                                     const std::vector<std::optional<std::int64_t>>& classes) {
  std::vector<std::int64_t> stack;
  for (const ir::ExpressionStep& step : steps) {
    if (step.op == ir::ExpressionOp::kConstant) {
      stack.push_back(step.argument);
    } else if (step.op == ir::ExpressionOp::kClass) {
      const auto& value = classes[static_cast<std::size_t>(step.argument)];
      if (!value) return std::nullopt;
      stack.push_back(*value);
    } else {
      const std::int64_t b = stack.back();
      stack.pop_back();
      if (!ir::apply_expression_op(step.op, stack.back(), b, stack.back())) return std::nullopt;
    }
  }
  return stack.back();
}

// What the classes of the graph are worth: as given, else computed, else the hint.
Result<Sizes> class_values(const ir::Graph& graph, std::map<std::string, std::int64_t> given) {
  std::vector<std::optional<std::int64_t>> values(graph.dim_classes.size());
  const auto find = [&](std::string_view name) -> std::optional<std::uint32_t> {
    for (std::uint32_t i = 0; i < graph.dim_classes.size(); ++i)
      if (graph.dim_classes[i].name == name) return i;
    return std::nullopt;
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ir::DimClass& c = graph.dim_classes[i];
    if (const auto found = given.find(c.name); found != given.end()) {
      if (!c.expression.empty())
        return Status(Code::kInvalidArgument,
                      c.name + " follows from others (\"" + c.expression + "\"); leave it out.");
      if (found->second < c.min || found->second > c.max || found->second % c.divisor != 0)
        return Status(Code::kInvalidArgument, c.name + " = " + std::to_string(found->second) +
                                                  " is outside [" + std::to_string(c.min) + ", " +
                                                  std::to_string(c.max) + "] or no multiple of " +
                                                  std::to_string(c.divisor) + ".");
      values[i] = found->second;
      given.erase(found);
    } else if (c.expression.empty()) {
      values[i] = c.hint;
    }
  }
  if (!given.empty())
    return Status(Code::kInvalidArgument,
                  "The graph has no dim class " + given.begin()->first + ".");
  for (std::size_t round = 0; round <= values.size(); ++round) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i]) continue;
      BP_ASSIGN_OR_RETURN(const auto steps,
                          ir::parse_expression(graph.dim_classes[i].expression, find));
      values[i] = evaluate(steps, values);
    }
  }
  Sizes out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i])
      return Status(Code::kInvalidArgument, graph.dim_classes[i].name + " = \"" +
                                                graph.dim_classes[i].expression +
                                                "\" cannot be computed.");
    out.push_back(*values[i]);
  }
  return out;
}

// Classes that no input's shape gives: a framework passes them as integers.
std::vector<std::string> integer_arguments(const ir::Graph& graph) {
  std::vector<bool> bound(graph.dim_classes.size(), false);
  for (const ir::ValueId input : graph.inputs)
    for (const ir::Dim dim : graph.values[input].type.dims)
      if (dim.is_class()) bound[dim.class_index()] = true;
  std::vector<std::string> out;
  for (std::size_t i = 0; i < bound.size(); ++i)
    if (!bound[i] && graph.dim_classes[i].expression.empty())
      out.push_back(graph.dim_classes[i].name);
  return out;
}

std::size_t memory_bytes(const ir::Graph& graph, ir::ValueId value, const Sizes& classes) {
  const ir::TensorType& type = graph.values[value].type;
  return static_cast<std::size_t>(ir::span_bytes(type.dtype, ir::resolve(type.dims, classes),
                                                 ir::resolve(type.strides, classes)));
}

// Nodes that the device left to the host, with its reasons.
Status check_claimed(const CompiledGraph& compiled, const std::string& device) {
  if (compiled.fallback_node_count() == 0) return {};
  const ir::Graph& graph = compiled.graph();
  std::vector<bool> taken(graph.nodes.size(), false);
  for (const auto& partition : compiled.partitions())
    for (const ir::NodeId node : partition->nodes) taken[node] = true;
  std::string text = device + " does not take the whole graph:";
  for (ir::NodeId node = 0; node < graph.nodes.size(); ++node) {
    if (taken[node] || graph.nodes[node].op->op_class == ir::OpClass::kView) continue;
    const auto refusal =
        std::ranges::find(compiled.refusals(), node, &runtime::RefusalReport::node);
    text += "\n  " + ir::print_node(graph, node) + "\n    ";
    text += refusal != compiled.refusals().end() ? refusal->text : "without a reason";
  }
  return {Code::kUnsupported, text};
}

class Run {
 public:
  Run(std::unique_ptr<CompiledGraph> compiled, std::vector<Bytes>& inputs, const Sizes& classes)
      : compiled_(std::move(compiled)), inputs_(inputs), classes_(classes) {}

  Status prepare() {
    const ir::Graph& graph = compiled_->graph();
    BP_ASSIGN_OR_RETURN(plan_, compiled_->plan(classes_));
    std::vector<runtime::StaticTensor> tensors;
    for (const std::uint32_t i : compiled_->packed_inputs()) {
      runtime::StaticTensor& tensor = tensors.emplace_back();
      tensor.data = tensor.storage = inputs_[i].data();
      tensor.dtype = graph.values[graph.inputs[i]].type.dtype;
    }
    BP_ASSIGN_OR_RETURN(packs_, compiled_->packs(tensors));
    for (Bytes& input : inputs_) addresses_.push_back(input.data());
    for (const CompiledGraph::Export& one : compiled_->exports()) {
      Bytes& memory = memory_.emplace_back();
      if (one.source == CompiledGraph::Source::kPlugin)
        memory.resize(memory_bytes(graph, one.root, classes_));
    }
    for (Bytes& memory : memory_) outputs_.push_back(memory.data());
    return {};
  }

  Status call() {
    CompiledGraph::Call arguments;
    arguments.inputs = addresses_;
    arguments.outputs = outputs_;
    arguments.packs = packs_.get();
    return compiled_->run(*plan_, arguments);
  }

  // Output i, dense.
  Bytes output(std::size_t i) const {
    const ir::Graph& graph = compiled_->graph();
    const ir::ValueId value = graph.outputs[i], root = ir::view_root(graph, value);
    const std::uint8_t* data = nullptr;
    for (std::size_t e = 0; e < memory_.size(); ++e)
      if (compiled_->exports()[e].root == root) data = memory_[e].data();
    for (std::size_t k = 0; k < graph.inputs.size(); ++k)
      if (graph.inputs[k] == root) data = inputs_[k].data();
    if (graph.values[root].constant) data = graph.values[root].constant->bytes.data();
    const ir::TensorType& type = graph.values[value].type;
    return make_dense(type.dtype, data + ir::view_offset_bytes(graph, value, classes_),
                      ir::resolve(type.dims, classes_), ir::resolve(type.strides, classes_));
  }

  const CompiledGraph& compiled() const { return *compiled_; }

 private:
  std::unique_ptr<CompiledGraph> compiled_;
  std::vector<Bytes>& inputs_;
  const Sizes& classes_;
  std::unique_ptr<const runtime::Plan> plan_;
  std::shared_ptr<const CompiledGraph::PackSet> packs_;
  std::vector<Bytes> memory_;
  std::vector<void*> addresses_, outputs_;
};

Result<std::unique_ptr<Run>> start(const ir::Graph& graph, const std::string& name,
                                   const Options& options, std::vector<Bytes>& inputs,
                                   const Sizes& classes) {
  BP_ASSIGN_OR_RETURN(Device* const device, open_device(name, options.plugin_paths));
  const std::vector<std::string> integers = integer_arguments(graph);
  BP_ASSIGN_OR_RETURN(auto compiled, CompiledGraph::compile(graph, {device}, {}, integers));
  BP_RETURN_IF_ERROR(check_claimed(*compiled, device->label()));
  auto run = std::make_unique<Run>(std::move(compiled), inputs, classes);
  BP_RETURN_IF_ERROR(run->prepare());
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
  if (options.print_plan) out << first->compiled().print_plan();
  for (std::size_t i = 0; i < graph.outputs.size(); ++i)
    print_output(out, i, graph.values[graph.outputs[i]].type, classes, first->output(i));
  if (options.repeat > 0) BP_RETURN_IF_ERROR(time_calls(out, *first, options.repeat));
  if (options.compare.empty()) return true;

  BP_ASSIGN_OR_RETURN(const auto second, start(graph, options.compare, options, inputs, classes));
  bool equal = true;
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const Difference difference =
        compare(graph.values[graph.outputs[i]].type.dtype, first->output(i), second->output(i));
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
