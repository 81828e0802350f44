#include "core/torch/python/record_bindings.h"
#include "core/torch/bridge/held_signals.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ir/text.h"
#include "core/ir/verifier.h"
#include "core/runtime/plugin/device.h"
#include "core/torch/compiler/compiled_function.h"
#include "core/torch/python/devices.h"
#include "core/torch/python/program_call.h"
#include "core/torch/record/escape.h"
#include "core/torch/record/recorder.h"
#include "core/torch/record/replay.h"

namespace py = pybind11;

namespace backplane::python {

namespace {

using record::kAbsent;
using record::Recorded;

// What a recording gave: a graph and what it means, or the reason why there is none.
struct Recording {
  Result<Recorded> result;
  std::vector<std::string> captured;  // attributes of the module that became arguments
  std::int64_t record_ns = 0;

  const Recorded& get() const {
    if (!result.ok()) throw py::value_error("nothing was recorded: " + result.status().message());
    return *result;
  }
};

std::unique_ptr<Recording> record_program(const py::object& callable, const py::list& arguments,
                                          const record::RecordOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  auto made = std::make_unique<Recording>(Recording{Status(Code::kInternal, "not run"), {}, 0});
  std::vector<at::Tensor> tensors;
  Status status = record::guard_escapes();
  for (const py::handle item : arguments) {
    c10::IValue value;
    if (status.ok()) status = to_argument(item, tensors.size(), value);
    if (status.ok() && !value.isTensor())
      status = Status(Code::kUnsupported, "argument " + std::to_string(tensors.size()) + " is a " +
                                              type_name(item) + ", not a tensor");
    if (status.ok()) tensors.push_back(value.toTensor());
  }
  if (!status.ok()) {
    made->result = std::move(status);
    return made;
  }
  const record::Program program = [&](const std::vector<at::Tensor>& given) {
    return call_python(callable, std::vector<c10::IValue>(given.begin(), given.end()));
  };
  const bridge::HeldSignals held;
  {
    const py::gil_scoped_release no_gil;
    made->result = record::record(program, tensors, options);
  }
  rethrow_interrupt();
  if (!made->result.ok()) PyErr_Clear();  // some of PyTorch's C++ throws with Python's error set
  made->record_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start)
          .count();
  return made;
}

std::unique_ptr<Recording> record_fx(const py::object& module, const py::list& arguments,
                                     record::RecordOptions options) {
  Result<ModuleProgram> program = module_program(module, arguments.size());
  if (!program.ok()) return std::make_unique<Recording>(Recording{program.take_status(), {}, 0});
  py::list all;
  for (const py::handle item : arguments) all.append(item);
  for (const at::Tensor& tensor : program->captured) all.append(tensor_or_none(tensor));
  const std::size_t own = arguments.size();
  options.argument_names.resize(own);
  for (std::size_t i = 0; i < own; ++i)
    if (options.argument_names[i].empty())
      options.argument_names[i] = "primals_" + std::to_string(i + 1);
  for (const std::string& name : program->captured_names) options.argument_names.push_back(name);
  options.locate = std::move(program->locate);
  auto made = record_program(program->callable, all, options);
  made->captured = std::move(program->captured_names);
  return made;
}

py::object position(std::uint32_t index) {
  return index == kAbsent ? py::object(py::none()) : py::object(py::int_(index));
}

py::list arguments_of(const Recording& recording) {
  py::list out;
  for (const record::ArgumentInfo& info : recording.get().arguments) {
    py::dict one;
    one["graph_input"] = info.graph_input;
    one["requires_grad"] = info.requires_grad;
    one["is_mutated"] = info.is_mutated;
    one["new_value"] = position(info.new_value);
    one["new_value_requires_grad"] = info.new_value_requires_grad;
    one["tangent"] = position(info.tangent);
    one["gradient"] = position(info.gradient);
    out.append(one);
  }
  return out;
}

const char* kind_name(record::OutputKind kind) {
  switch (kind) {
    case record::OutputKind::kPlain:
      return "plain";
    case record::OutputKind::kFresh:
      return "fresh";
    case record::OutputKind::kArgument:
      return "argument";
    case record::OutputKind::kViewOfArgument:
      return "view_of_argument";
    case record::OutputKind::kViewOfOutput:
      return "view_of_output";
    case record::OutputKind::kSharedWithOutput:
      return "shared_with_output";
  }
  return "invalid";
}

py::list outputs_of(const Recording& recording) {
  py::list out;
  for (const record::OutputInfo& info : recording.get().outputs) {
    py::dict one;
    one["kind"] = kind_name(info.kind);
    one["base"] = position(info.base);
    one["graph_output"] = position(info.graph_output);
    one["plain"] = torch::jit::toPyObject(info.plain);
    one["sizes"] = py::cast(info.sizes);
    one["strides"] = py::cast(info.strides);
    one["storage_offset"] = info.storage_offset;
    one["requires_grad"] = info.requires_grad;
    one["tangent"] = position(info.tangent);
    out.append(one);
  }
  return out;
}

py::tuple replay_graph(const ir::Graph& graph, const std::vector<at::Tensor>& constants,
                       const py::list& list) {
  std::vector<at::Tensor> inputs;
  for (const py::handle item : list) inputs.push_back(THPVariable_Unpack(item.ptr()));
  std::optional<Result<record::Replayed>> replayed;
  {
    const py::gil_scoped_release no_gil;
    replayed.emplace(record::replay(graph, constants, inputs));
  }
  if (!replayed->ok()) throw py::value_error(replayed->status().message());
  py::list outputs;
  for (const at::Tensor& tensor : (*replayed)->outputs) outputs.append(tensor_or_none(tensor));
  return py::make_tuple(outputs, (*replayed)->differences, (*replayed)->restrided);
}

py::tuple replay(const Recording& recording, const py::list& inputs) {
  return replay_graph(recording.get().graph, recording.get().constants, inputs);
}

// A joint graph cut in two; both halves can be replayed.
struct Halves {
  partition::JointCut cut;
  std::vector<at::Tensor> forward_constants, backward_constants;
  std::vector<std::string> saved_names, recomputed_operators;
  std::string explanation;
};

std::vector<at::Tensor> moved_constants(const std::vector<at::Tensor>& constants,
                                        const std::vector<ir::ValueId>& ids,
                                        const ir::Graph& graph) {
  std::vector<at::Tensor> moved(graph.values.size());
  for (ir::ValueId v = 0; v < constants.size(); ++v)
    if (constants[v].defined() && ids[v] != ir::kNone) moved[ids[v]] = constants[v];
  return moved;
}

std::unique_ptr<Halves> cut(const Recording& recording, double memory_budget) {
  const Recorded& recorded = recording.get();
  partition::JointCutOptions options;
  options.memory_budget = memory_budget;
  Result<partition::JointCut> made = partition::cut_joint(recorded.graph, recorded.border, options);
  if (!made.ok()) throw py::value_error(made.status().message());
  auto halves = std::make_unique<Halves>();
  halves->explanation = partition::explain(recorded.graph, *made);
  for (const partition::SavedValue& saved : made->saved)
    halves->saved_names.push_back(recorded.graph.values[saved.value].name);
  for (const ir::NodeId n : made->recomputed)
    halves->recomputed_operators.emplace_back(recorded.graph.nodes[n].op->name);
  halves->forward_constants = moved_constants(recorded.constants, made->forward_ids, made->forward);
  halves->backward_constants =
      moved_constants(recorded.constants, made->backward_ids, made->backward);
  halves->cut = std::move(*made);
  return halves;
}

std::shared_ptr<compiler::CompiledFunction> compile_graph(
    const ir::Graph& graph, const std::vector<std::pair<std::string, int>>& devices,
    runtime::Role role) {
  const std::vector<runtime::Device*> targets = find_devices(devices);
  compiler::FunctionOptions options;
  options.compile.role = role;
  std::optional<Result<std::unique_ptr<compiler::CompiledFunction>>> made;
  {
    const py::gil_scoped_release no_gil;
    made.emplace(compiler::CompiledFunction::compile(graph, {}, targets, options));
  }
  if (!made->ok()) throw py::value_error(made->status().message());
  return std::move(**made);
}

py::tuple compile_halves(const Halves& halves,
                         const std::vector<std::pair<std::string, int>>& devices) {
  return py::make_tuple(compile_graph(halves.cut.forward, devices, runtime::Role::kForward),
                        compile_graph(halves.cut.backward, devices, runtime::Role::kBackward));
}

py::list saved_of(const Halves& halves) {
  py::list out;
  for (std::size_t i = 0; i < halves.saved_names.size(); ++i) {
    const partition::SavedValue& saved = halves.cut.saved[i];
    py::dict one;
    one["name"] = halves.saved_names[i];
    one["is_argument"] = saved.is_argument;
    one["forward_position"] = saved.forward_position;
    one["bytes"] = saved.bytes;
    out.append(one);
  }
  return out;
}

std::vector<std::string> operators(const Recording& recording) {
  std::vector<std::string> names;
  for (const ir::Node& node : recording.get().graph.nodes) names.emplace_back(node.op->name);
  return names;
}

py::dict shape_counts(const Recording& recording) {
  const record::ShapeCounts& counts = recording.get().shapes;
  py::dict out;
  out["compiled"] = counts.compiled;
  out["python"] = counts.python;
  out["run_on_zeros"] = counts.run_on_zeros;
  return out;
}

record::RecordOptions make_options(std::string name, bool with_backward,
                                   std::vector<std::string> argument_names,
                                   std::vector<std::uint32_t> static_arguments) {
  record::RecordOptions options;
  options.name = std::move(name);
  options.with_backward = with_backward;
  options.argument_names = std::move(argument_names);
  options.static_arguments = std::move(static_arguments);
  return options;
}

using Names = std::vector<std::string>;
using Positions = std::vector<std::uint32_t>;

}  // namespace

void register_record(py::module_& module) {
  py::class_<Recording>(module, "Recording")
      .def_property_readonly("ok", [](const Recording& r) { return r.result.ok(); })
      .def_property_readonly(
          "reason",
          [](const Recording& r) { return r.result.ok() ? "" : r.result.status().message(); })
      .def_readonly("captured", &Recording::captured)
      .def_readonly("record_ns", &Recording::record_ns)
      .def_property_readonly("text", [](const Recording& r) { return ir::print(r.get().graph); })
      .def_property_readonly("operators", operators)
      .def_property_readonly("forward_node_count",
                             [](const Recording& r) { return r.get().forward_node_count; })
      .def_property_readonly("call_count", [](const Recording& r) { return r.get().call_count; })
      .def_property_readonly("arguments", arguments_of)
      .def_property_readonly("outputs", outputs_of)
      .def_property_readonly("grad_mode_after",
                             [](const Recording& r) { return r.get().grad_mode_after; })
      .def_property_readonly("shape_counts", shape_counts)
      .def_property_readonly("python_shapes",
                             [](const Recording& r) { return r.get().python_shapes; })
      .def("verify", [](const Recording& r) { return ir::verify(r.get().graph).to_string(); })
      // ATen's errors keep their Python types (IndexError, ...).
      .def("replay", torch::wrap_pybind_function(replay), py::arg("inputs"))
      .def("cut", cut, py::arg("memory_budget") = 1.0);

  py::class_<Halves>(module, "JointCut")
      .def_property_readonly("forward_text",
                             [](const Halves& h) { return ir::print(h.cut.forward); })
      .def_property_readonly("backward_text",
                             [](const Halves& h) { return ir::print(h.cut.backward); })
      .def_property_readonly("saved", saved_of)
      .def_property_readonly("saved_bytes", [](const Halves& h) { return h.cut.saved_bytes; })
      .def_readonly("recomputed", &Halves::recomputed_operators)
      .def_readonly("explanation", &Halves::explanation)
      // Forward and backward as compiled functions over tensors: boxed, as those of compile_fx.
      .def("compile", compile_halves, py::arg("devices"))
      .def("replay_forward",
           torch::wrap_pybind_function([](const Halves& h, const py::list& inputs) {
             return replay_graph(h.cut.forward, h.forward_constants, inputs);
           }),
           py::arg("inputs"))
      .def("replay_backward",
           torch::wrap_pybind_function([](const Halves& h, const py::list& inputs) {
             return replay_graph(h.cut.backward, h.backward_constants, inputs);
           }),
           py::arg("inputs"));

  module.def(
      "record",
      [](const py::object& program, const py::list& arguments, std::string name, bool with_backward,
         Names argument_names, Positions static_arguments) {
        return record_program(program, arguments,
                              make_options(std::move(name), with_backward,
                                           std::move(argument_names), std::move(static_arguments)));
      },
      py::arg("program"), py::arg("arguments"), py::arg("name") = "joint",
      py::arg("with_backward") = true, py::arg("argument_names") = Names{},
      py::arg("static_arguments") = Positions{});
  module.def(
      "record_fx",
      [](const py::object& graph_module, const py::list& arguments, std::string name,
         bool with_backward, Names argument_names, Positions static_arguments) {
        return record_fx(graph_module, arguments,
                         make_options(std::move(name), with_backward, std::move(argument_names),
                                      std::move(static_arguments)));
      },
      py::arg("graph_module"), py::arg("arguments"), py::arg("name") = "joint",
      py::arg("with_backward") = true, py::arg("argument_names") = Names{},
      py::arg("static_arguments") = Positions{});
}

}  // namespace backplane::python
