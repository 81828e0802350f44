#include "core/torch/python/frontend_bindings.h"

#include <ATen/ATen.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/cpython/bytecode/code.h"
#include "core/runtime/device.h"
#include "core/torch/call/compiled.h"
#include "core/torch/compiler/cut_entry.h"
#include "core/torch/python/devices.h"

namespace py = pybind11;

namespace backplane::python {

namespace {

// Called with each graph that was compiled for a plugin: (function, role, cut). It may refuse one.
using Accept = std::shared_ptr<py::object>;

// Without a device ATen runs the graph, node by node.
Result<call::Program> make_program(const record::Recorded& recorded,
                                   const compiler::CutOptions& settings, const Accept& accept) {
  compiler::CutOptions options = settings;
  options.name = recorded.graph.name;
  const auto eager = [](std::span<const at::Tensor>) -> std::vector<c10::IValue> {
    throw std::runtime_error(
        "The gradient of a captured program cannot be differentiated again (create_graph=True). "
        "Call the function without torch_backplane for that.");
  };
  auto sizes = std::make_shared<const autograd::SizeRecord>(compiler::size_record(recorded));
  std::optional<Result<std::shared_ptr<compiler::CutEntry>>> made;
  {
    const py::gil_scoped_release no_gil;
    made.emplace(compiler::CutEntry::compile(recorded, options, eager));
  }
  if (!made->ok()) return made->take_status();
  if (!options.devices.empty()) {
    try {
      for (compiler::Stage& stage : (**made)->stages())
        (*accept)(std::move(stage.function), compiler::role_name(stage.role), std::move(stage.cut));
    } catch (py::error_already_set& refusal) {
      refusal.restore();
      return Status(Code::kCancelled, "refused");
    }
  }
  return call::Program{std::move(**made), std::move(sizes)};
}

py::object compile(const py::object& target, const std::string& name, const std::string& plugin,
                   std::uint32_t device, bool strict, std::size_t entry_limit, double memory_budget,
                   bool pack_inference, bool pack_training, const py::object& accept) {
  call::CompiledOptions options;
  options.name = name;
  options.strict = strict;
  options.entry_limit = entry_limit;
  compiler::CutOptions settings;
  if (!plugin.empty()) settings.devices = find_devices({{plugin, static_cast<int>(device)}});
  settings.memory_budget = memory_budget;
  settings.pack_inference = pack_inference;
  settings.pack_training = pack_training;
  options.make_program =
      [settings, accept = std::make_shared<py::object>(accept)](const record::Recorded& recorded) {
        return make_program(recorded, settings, accept);
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

// Seconds for one check of the first entry's guards with these arguments.
double time_guards(const py::object& compiled, const py::tuple& arguments, std::size_t count) {
  const call::CompiledCallable& state = state_of(compiled);
  if (state.entries().empty()) throw py::value_error("the function has no entry");
  std::vector<PyObject*> values;
  for (const py::handle argument : arguments) values.push_back(argument.ptr());
  const guards::CallArguments call{values.data(), values.size(), nullptr};
  guards::Registers registers;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < count; ++i)
    if (!state.entries().front()->check(call, registers))
      throw py::value_error("the entry's guards do not hold for these arguments");
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / static_cast<double>(count);
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
          py::arg("device"), py::arg("strict"), py::arg("entry_limit"), py::arg("memory_budget"),
          py::arg("pack_inference"), py::arg("pack_training"), py::arg("accept"));
  own.def("entries", entries);
  own.def("counters", counters);
  own.def("reset", [](const py::object& compiled) { state_of(compiled).reset(); });
  own.def("time_guards", time_guards, py::arg("compiled"), py::arg("arguments"), py::arg("count"));
  own.def("reassemble", reassemble);
}

}  // namespace backplane::python
