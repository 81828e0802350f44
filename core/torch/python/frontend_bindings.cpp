#include "core/torch/python/frontend_bindings.h"

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cpython/bytecode/code.h"
#include "core/runtime/device.h"
#include "core/runtime/registry.h"
#include "core/torch/call/compiled.h"
#include "core/torch/compiler/compiled_function.h"
#include "core/torch/record/replay.h"

namespace py = pybind11;

namespace backplane::python {

namespace {

// ATen runs the graph, node by node.
Result<call::GraphRunner> run_by_aten(const ir::Graph& recorded,
                                      const std::vector<at::Tensor>& constants, call::GraphRole) {
  auto graph = std::make_shared<const ir::Graph>(recorded);
  return call::GraphRunner(
      [graph, constants](std::span<const at::Tensor> inputs) -> Result<std::vector<at::Tensor>> {
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        BP_ASSIGN_OR_RETURN(record::Replayed replayed, record::replay(*graph, constants, inputs));
        if (!replayed.differences.empty())
          return Status(Code::kInternal,
                        "a node gave another shape than captured: " + replayed.differences.front());
        return std::move(replayed.outputs);
      });
}

runtime::Role role_of(call::GraphRole role) {
  if (role == call::GraphRole::kForward) return runtime::Role::kForward;
  if (role == call::GraphRole::kBackward) return runtime::Role::kBackward;
  return runtime::Role::kInference;
}

Result<call::GraphRunner> run_by_plugin(const ir::Graph& graph, call::GraphRole role,
                                        const std::string& plugin, std::uint32_t index) {
  BP_ASSIGN_OR_RETURN(runtime::Plugin * found, runtime::Registry::instance().find(plugin));
  BP_ASSIGN_OR_RETURN(runtime::Device * device, found->device(index));
  fx::Imported imported;
  imported.graph = graph;
  for (std::uint32_t i = 0; i < imported.graph.inputs.size(); ++i)
    imported.arguments.push_back({fx::Argument::Kind::kTensor, i});
  for (std::uint32_t i = 0; i < imported.graph.outputs.size(); ++i)
    imported.outputs.emplace_back(i);
  compiler::FunctionOptions options;
  options.compile.role = role_of(role);
  options.compile.pack_weights = role == call::GraphRole::kInference;
  std::optional<Result<std::unique_ptr<compiler::CompiledFunction>>> made;
  {
    const py::gil_scoped_release no_gil;
    made.emplace(compiler::CompiledFunction::compile(std::move(imported), {device}, options));
  }
  if (!made->ok()) return made->take_status();
  std::shared_ptr<compiler::CompiledFunction> function = std::move(**made);
  return call::GraphRunner(
      [function](std::span<const at::Tensor> inputs) -> Result<std::vector<at::Tensor>> {
        const std::vector<compiler::ArgumentValue> arguments(inputs.begin(), inputs.end());
        BP_ASSIGN_OR_RETURN(std::vector<compiler::OutputValue> outputs, function->call(arguments));
        std::vector<at::Tensor> tensors;
        for (compiler::OutputValue& output : outputs) {
          auto* tensor = std::get_if<at::Tensor>(&output);
          if (!tensor) return Status(Code::kInternal, "a graph's output is no tensor");
          tensors.push_back(std::move(*tensor));
        }
        return tensors;
      });
}

py::object compile(const py::object& target, const std::string& name, const std::string& plugin,
                   std::uint32_t device, bool strict, std::size_t entry_limit) {
  call::CompiledOptions options;
  options.name = name;
  options.strict = strict;
  options.entry_limit = entry_limit;
  if (plugin.empty())
    options.make_runner = run_by_aten;
  else
    options.make_runner = [plugin, device](const ir::Graph& graph, const std::vector<at::Tensor>&,
                                           call::GraphRole role) {
      return run_by_plugin(graph, role, plugin, device);
    };
  PyObject* made = call::make_compiled(target.ptr(), std::move(options));
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

call::CompiledCallable& state_of(const py::object& compiled) {
  call::CompiledCallable* state = call::find_compiled(compiled.ptr());
  if (!state) throw py::type_error("not a compiled function");
  return *state;
}

py::list entries(const py::object& compiled) {
  py::list out;
  for (const auto& entry : state_of(compiled).entries()) {
    py::dict one;
    one["guards"] = entry->guards_text();
    one["graph"] = entry->graph_text();
    one["nodes"] = entry->captured().recorded.graph.nodes.size();
    one["calls"] = entry->captured().recorded.call_count;
    one["inputs"] = entry->captured().inputs.size();
    one["hits"] = entry->hits();
    one["instructions"] = entry->captured().instruction_count;
    one["frames"] = entry->captured().frame_count;
    one["capture_ns"] = entry->captured().capture_ns;
    out.append(one);
  }
  return out;
}

py::dict counters(const py::object& compiled) {
  const call::CompiledCallable& state = state_of(compiled);
  py::dict out, reasons;
  for (const auto& [reason, count] : state.plain_reasons()) reasons[py::str(reason)] = count;
  out["entries"] = state.entries().size();
  out["hits"] = state.hits();
  out["plain_calls"] = state.plain_calls();
  out["plain_reasons"] = reasons;
  return out;
}

py::object reassemble(const py::object& code) {
  auto* object = reinterpret_cast<PyCodeObject*>(code.ptr());
  if (!PyCode_Check(code.ptr())) throw py::type_error("not a code object");
  Result<cpython::Code> decoded = cpython::decode(object);
  if (!decoded.ok()) throw py::value_error(decoded.status().message());
  Result<cpython::Ref> made = cpython::assemble(*decoded, cpython::CodeShape(object));
  if (!made.ok()) throw py::value_error(made.status().message());
  return py::reinterpret_steal<py::object>(made->release());
}

}  // namespace

void register_frontend(py::module_& module) {
  py::module_ own = module.def_submodule("frontend");
  own.def("compile", compile, py::arg("target"), py::arg("name"), py::arg("plugin"),
          py::arg("device"), py::arg("strict"), py::arg("entry_limit"));
  own.def("entries", entries);
  own.def("counters", counters);
  own.def("reset", [](const py::object& compiled) { state_of(compiled).reset(); });
  own.def("reassemble", reassemble);
}

}  // namespace backplane::python
