// Graphs in tests: f32 ops in plain loops on host memory, as the fallback of a compiled graph and
// as the reference that results are compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/ir/text.h"
#include "core/ir/view.h"
#include "core/runtime/plan/compiled_graph.h"
#include "core/runtime/plugin/device.h"
#include "core/runtime/plugin/pack_cache.h"
#include "core/runtime/plugin/plugin.h"

namespace backplane::runtime::testing_graph {

using Floats = std::vector<float>;
using Classes = std::vector<std::int64_t>;

// One element at a time through strides; clear rather than fast.
struct TensorView {
  float* data = nullptr;
  std::vector<std::int64_t> dims, strides;

  std::int64_t elements() const {
    std::int64_t n = 1;
    for (const std::int64_t d : dims) n *= d;
    return n;
  }
  // The element that index `n` of a tensor with dims `of` reads, broadcast.
  float& at(std::int64_t n, const std::vector<std::int64_t>& of) const {
    std::int64_t offset = 0;
    for (std::size_t i = of.size(); i-- > 0; n /= of[i]) {
      const std::size_t missing = of.size() - dims.size();
      if (i >= missing && dims[i - missing] != 1) offset += n % of[i] * strides[i - missing];
    }
    return data[offset];
  }
  float& at(std::int64_t n) const { return at(n, dims); }
};

inline TensorView view_of(const ir::Graph& graph, ir::ValueId value, void* root,
                          std::span<const std::int64_t> classes) {
  const ir::TensorType& type = graph.values[value].type;
  TensorView out{nullptr, ir::resolve(type.dims, classes), ir::resolve(type.strides, classes)};
  if (root != nullptr)
    out.data = reinterpret_cast<float*>(static_cast<char*>(root) +
                                        ir::view_offset_bytes(graph, value, classes));
  return out;
}

inline std::size_t memory_floats(const ir::Graph& graph, ir::ValueId value,
                                 std::span<const std::int64_t> classes) {
  const ir::TensorType& type = graph.values[value].type;
  return static_cast<std::size_t>(ir::span_bytes(type.dtype, ir::resolve(type.dims, classes),
                                                 ir::resolve(type.strides, classes)) /
                                  4);
}

// Also ops that no plugin knows: test.twice, and test.fails, which fails.
class HostRunner final : public FallbackRunner {
 public:
  explicit HostRunner(const ir::Graph& graph) : graph_(graph) {}

  Status run(ir::NodeId id, Memory& memory) override {
    ++nodes_run;
    const ir::Node& node = graph_.nodes[id];
    const std::string_view op = node.op->name;
    if (op == "test.fails") return {Code::kInternal, "the fallback was asked to fail"};
    std::vector<TensorView> in;
    for (const ir::ValueId operand : node.operands) {
      if (operand == ir::kNone) continue;
      const ir::ValueId root = ir::view_root(graph_, operand);
      const ir::Value& value = graph_.values[root];
      void* address = value.constant ? const_cast<std::uint8_t*>(value.constant->bytes.data())
                                     : memory.address(root);
      in.push_back(view_of(graph_, operand, address, memory.dim_values()));
    }
    const ir::ValueId result = node.results.at(0);
    Floats& store =
        results_.emplace_back(memory_floats(graph_, result, memory.dim_values()), -77.f);
    store_of_[result] = &store;
    memory.set_address(result, store.data());
    const TensorView out = view_of(graph_, result, store.data(), memory.dim_values());
    if (op == "aten.mm") {
      const std::int64_t rows = out.dims[0], columns = out.dims[1], depth = in[0].dims[1];
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) {
          float sum = 0;
          for (std::int64_t k = 0; k < depth; ++k)
            sum += in[0].at(r * depth + k) * in[1].at(k * columns + c);
          out.at(r * columns + c) = sum;
        }
      return {};
    }
    for (std::int64_t n = 0; n < out.elements(); ++n) {
      const float a = in[0].at(n, out.dims), b = in.size() > 1 ? in[1].at(n, out.dims) : 0;
      float& target = out.at(n);
      if (op == "aten.add.Tensor")
        target = a + b;
      else if (op == "aten.sub.Tensor")
        target = a - b;
      else if (op == "aten.mul.Tensor")
        target = a * b;
      else if (op == "aten.relu")
        target = a > 0 ? a : 0;
      else if (op == "aten.neg")
        target = -a;
      else if (op == "test.twice")
        target = 2 * a;
      else
        return {Code::kUnsupported, "the test runner has no " + std::string(op)};
    }
    return {};
  }

  void release(ir::ValueId root) override { std::ranges::fill(*store_of_.at(root), std::nanf("")); }

  int nodes_run = 0;

 private:
  const ir::Graph& graph_;
  std::deque<Floats> results_;
  std::map<ir::ValueId, Floats*> store_of_;
};

// The memory of all inputs, and what a weight says about itself.
struct Inputs {
  std::vector<Floats> memory;
  std::vector<std::uint64_t> versions;

  static Inputs random(const ir::Graph& graph, const Classes& classes = {}, unsigned seed = 1) {
    std::mt19937 generator(seed);
    Inputs out;
    for (const ir::ValueId input : graph.inputs) {
      Floats& data = out.memory.emplace_back(memory_floats(graph, input, classes));
      for (float& x : data) x = static_cast<float>(generator() % 17) - 8;
    }
    out.versions.assign(graph.inputs.size(), 0);
    return out;
  }
};

inline Floats dense(const TensorView& view) {
  Floats out;
  for (std::int64_t n = 0; n < view.elements(); ++n) out.push_back(view.at(n));
  return out;
}

// Node by node, every value in memory of its own.
inline Result<std::vector<Floats>> evaluate(const ir::Graph& graph, Inputs& inputs,
                                            const Classes& classes = {}) {
  struct Plain final : FallbackRunner::Memory {
    std::map<ir::ValueId, void*> at;
    std::span<const std::int64_t> classes;
    void* address(ir::ValueId root) const override { return at.at(root); }
    void set_address(ir::ValueId root, void* data) override { at[root] = data; }
    std::span<const std::int64_t> dim_values() const override { return classes; }
  } memory;
  memory.classes = classes;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i)
    memory.at[graph.inputs[i]] = inputs.memory[i].data();
  HostRunner runner(graph);
  for (ir::NodeId n = 0; n < graph.nodes.size(); ++n)
    if (graph.nodes[n].op->op_class != ir::OpClass::kView)
      BP_RETURN_IF_ERROR(runner.run(n, memory));
  std::vector<Floats> out;
  for (const ir::ValueId output : graph.outputs) {
    const ir::ValueId root = ir::view_root(graph, output);
    const ir::Value& value = graph.values[root];
    void* address = value.constant ? const_cast<std::uint8_t*>(value.constant->bytes.data())
                                   : memory.at.at(root);
    out.push_back(dense(view_of(graph, output, address, classes)));
  }
  return out;
}

// Lends outputs when they are asked for, and spoils inputs that nobody is to read any more.
class SpoilingLender final : public MemoryLender {
 public:
  SpoilingLender(const CompiledGraph& compiled, std::vector<Floats>& inputs,
                 std::vector<Floats>& results, std::span<const std::int64_t> classes)
      : compiled_(compiled), inputs_(inputs), results_(results), classes_(classes) {}

  Result<void*> lend_output(std::size_t position) override {
    order += " +" + name(compiled_.exports()[position].root);
    results_[position].assign(
        memory_floats(compiled_.graph(), compiled_.exports()[position].root, classes_), -99.f);
    return results_[position].data();
  }
  void release_input(std::size_t position) override {
    order += " -" + name(compiled_.graph().inputs[position]);
    std::ranges::fill(inputs_[position], std::nanf(""));
  }

  std::string order;  // "+y" lent, "-x" released

 private:
  const std::string& name(ir::ValueId value) const { return compiled_.graph().values[value].name; }

  const CompiledGraph& compiled_;
  std::vector<Floats>& inputs_;
  std::vector<Floats>& results_;
  std::span<const std::int64_t> classes_;
};

// Calls a compiled graph as a framework would.
inline Result<std::vector<Floats>> call(CompiledGraph& compiled, Inputs& inputs,
                                        const Classes& classes = {}, int* fallback_nodes = nullptr,
                                        std::string* lent = nullptr) {
  const ir::Graph& graph = compiled.graph();
  std::vector<std::vector<std::int64_t>> dims;
  std::vector<std::span<const std::int64_t>> spans;
  for (const ir::ValueId input : graph.inputs)
    dims.push_back(ir::resolve(graph.values[input].type.dims, classes));
  spans.assign(dims.begin(), dims.end());
  Classes values(graph.dim_classes.size());
  BP_RETURN_IF_ERROR(compiled.dim_program().evaluate(spans, {}, values));
  BP_ASSIGN_OR_RETURN(const auto plan, compiled.plan(values));

  std::vector<void*> addresses;
  std::vector<Floats> own_inputs = inputs.memory;  // the call's, to be spoiled
  for (Floats& memory : own_inputs) addresses.push_back(memory.data());
  std::shared_ptr<const CompiledGraph::PackSet> packs;
  std::vector<StaticTensor> tensors;
  std::vector<std::vector<std::int64_t>> strides;
  strides.reserve(compiled.packed_inputs().size());
  for (const std::uint32_t i : compiled.packed_inputs()) {
    strides.push_back(ir::resolve(graph.values[graph.inputs[i]].type.strides, values));
    StaticTensor tensor;
    tensor.data = tensor.storage = inputs.memory[i].data();
    tensor.version = inputs.versions[i];
    tensor.dims = dims[i];
    tensor.strides = strides.back();
    tensors.push_back(tensor);
  }
  if (!tensors.empty()) {
    BP_ASSIGN_OR_RETURN(packs, compiled.packs(tensors));
  }

  std::vector<Floats> results(compiled.exports().size());
  std::vector<void*> outputs(compiled.exports().size(), nullptr);
  std::map<ir::ValueId, void*> root_address;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i)
    root_address[graph.inputs[i]] = addresses[i];
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const CompiledGraph::Export& one = compiled.exports()[i];
    // Every second one is there from the start, unless all are to be lent.
    if (one.source != CompiledGraph::Source::kPlugin || lent != nullptr || i % 2 != 0) continue;
    results[i].assign(memory_floats(graph, one.root, values), -99.f);
    outputs[i] = results[i].data();
  }
  // As a framework's runner: it keeps what it made, so that outputs can be taken from it.
  class KeepingRunner final : public FallbackRunner {
   public:
    explicit KeepingRunner(const ir::Graph& graph) : runner(graph), graph_(graph) {}
    void release(ir::ValueId root) override { runner.release(root); }
    Status run(ir::NodeId node, Memory& memory) override {
      BP_RETURN_IF_ERROR(runner.run(node, memory));
      for (const ir::ValueId result : graph_.nodes[node].results)
        at[result] = memory.address(result);
      return {};
    }
    HostRunner runner;
    std::map<ir::ValueId, void*> at;

   private:
    const ir::Graph& graph_;
  } runner(graph);
  CompiledGraph::Call arguments;
  arguments.inputs = addresses;
  arguments.outputs = outputs;
  arguments.packs = packs.get();
  arguments.fallback = &runner;
  SpoilingLender lender(compiled, own_inputs, results, values);
  arguments.lender = &lender;
  BP_RETURN_IF_ERROR(compiled.run(*plan, arguments));
  if (lent != nullptr) *lent = lender.order;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (compiled.exports()[i].source == CompiledGraph::Source::kPlugin)
      root_address[compiled.exports()[i].root] = results[i].data();
  if (fallback_nodes != nullptr) *fallback_nodes = runner.runner.nodes_run;
  for (const auto& [root, address] : runner.at) root_address.emplace(root, address);

  std::vector<Floats> out;
  for (const ir::ValueId output : graph.outputs) {
    const ir::ValueId root = ir::view_root(graph, output);
    const ir::Value& value = graph.values[root];
    void* address = value.constant ? const_cast<std::uint8_t*>(value.constant->bytes.data())
                                   : root_address.at(root);
    out.push_back(dense(view_of(graph, output, address, values)));
  }
  return out;
}

// "to: input 1x16, weight 2x80; from: output 1x16", count x bytes in total.
inline std::string copies(Device& device) {
  const CopyCounters& counters = device.counters();
  std::string out;
  const auto list = [&](const char* head, const auto& counts, const auto& bytes) {
    out += head;
    const char* separator = " ";
    for (int cause = 0; cause < kCopyCauseCount; ++cause) {
      const auto i = static_cast<std::size_t>(cause);
      if (counts[i].load() == 0) continue;
      out += separator + std::string(copy_cause_name(static_cast<CopyCause>(cause))) + " " +
             std::to_string(counts[i].load()) + "x" + std::to_string(bytes[i].load());
      separator = ", ";
    }
  };
  list("to:", counters.to_device_count, counters.to_device_bytes);
  list("; from:", counters.from_device_count, counters.from_device_bytes);
  return out;
}

inline Result<std::unique_ptr<CompiledGraph>> compile(std::string_view text,
                                                      const std::vector<Device*>& devices,
                                                      const CompileOptions& options = {}) {
  BP_ASSIGN_OR_RETURN(ir::Graph graph, ir::parse(text));
  return CompiledGraph::compile(std::move(graph), devices, options, {});
}

// Loaded once and never closed: packs and cached executables may outlive a test.
inline Plugin* load_for_good(const std::string& path) {
  static auto* const loaded = new std::map<std::string, Plugin*>;
  Plugin*& plugin = (*loaded)[path];
  if (plugin == nullptr) {
    auto made = Plugin::load(path);
    if (made.ok())
      plugin = made->release();
    else
      std::fprintf(stderr, "%s\n", made.status().message().c_str());
  }
  return plugin;
}
#ifdef BACKPLANE_TEST_PLUGIN_DIR
// Of `reference`, which has two, or of `reference_minimal`.
inline Device* reference_device(std::uint32_t index = 0, const char* name = "reference") {
  ::setenv("BACKPLANE_REFERENCE_DEVICES", "2", 1);
  Plugin* plugin =
      load_for_good(std::string(BACKPLANE_TEST_PLUGIN_DIR) + "/libbackplane_" + name + ".so");
  if (plugin == nullptr) return nullptr;
  auto device = plugin->device(index);
  return device.ok() ? *device : nullptr;
}
#endif
#ifdef BACKPLANE_TESTING_PLUGINS_DIR
// See scripted_plugin.cc; "scripted" or "scripted_serial".
inline Device* scripted_device(const char* name = "scripted") {
  Plugin* plugin =
      load_for_good(std::string(BACKPLANE_TESTING_PLUGINS_DIR) + "/libbackplane_" + name + ".so");
  if (plugin == nullptr) return nullptr;
  auto device = plugin->device(0);
  return device.ok() ? *device : nullptr;
}
// Sets $BACKPLANE_SCRIPTED for a scope.
class Script {
 public:
  explicit Script(const char* words) { ::setenv("BACKPLANE_SCRIPTED", words, 1); }
  ~Script() {
    ::unsetenv("BACKPLANE_SCRIPTED");
    if (Device* const device = scripted_device()) device->compile_faults().clear();
  }
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;
};
#endif

}  // namespace backplane::runtime::testing_graph
