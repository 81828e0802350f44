#include "core/torch/python/record_bindings.h"

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ir/text.h"
#include "core/ir/verifier.h"
#include "core/runtime/device.h"
#include "core/runtime/plugin.h"
#include "core/runtime/registry.h"
#include "core/torch/compiler/compiled_function.h"
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

py::object tensor_or_none(const at::Tensor& tensor) {
  if (!tensor.defined()) return py::none();
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
}

// Tensors and numbers of a nest of tuples, lists and dictionaries, in order.
void flatten(const py::handle& result, std::vector<c10::IValue>& out) {
  if (THPVariable_Check(result.ptr())) {
    out.emplace_back(THPVariable_Unpack(result.ptr()));
  } else if (result.is_none()) {
    out.emplace_back();
  } else if (py::isinstance<py::bool_>(result)) {
    out.emplace_back(result.cast<bool>());
  } else if (py::isinstance<py::int_>(result)) {
    out.emplace_back(result.cast<std::int64_t>());
  } else if (py::isinstance<py::float_>(result)) {
    out.emplace_back(result.cast<double>());
  } else if (py::isinstance<py::str>(result)) {
    out.emplace_back(result.cast<std::string>());
  } else if (py::isinstance<py::dict>(result)) {
    for (const auto& [name, item] : py::reinterpret_borrow<py::dict>(result)) flatten(item, out);
  } else if (py::isinstance<py::tuple>(result) || py::isinstance<py::list>(result)) {
    for (const py::handle item : result) flatten(item, out);
  } else {
    throw py::type_error("the program returns a " +
                         std::string(py::str(py::type::of(result).attr("__qualname__"))));
  }
}

// Fails for subclasses, whose own code a recording would not see. Fake tensors are looked at only.
Status unpack(const py::handle& item, std::vector<at::Tensor>& out) {
  const std::string position = "argument " + std::to_string(out.size());
  if (!THPVariable_Check(item.ptr()))
    return Status(Code::kUnsupported,
                  position + " is a " + std::string(py::str(py::type::of(item).attr("__name__"))) +
                      ", not a tensor");
  if (!THPVariable_CheckExact(item.ptr())) {
    const std::string type = py::str(py::type::of(item).attr("__name__"));
    if (type != "FakeTensor")
      return Status(Code::kUnsupported, position + " is of the tensor subclass " + type);
  }
  out.push_back(THPVariable_Unpack(item.ptr()));
  return {};
}

std::unique_ptr<Recording> record_program(const py::object& callable, const py::list& arguments,
                                          const record::RecordOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  auto made = std::make_unique<Recording>(Recording{Status(Code::kInternal, "not run"), {}, 0});
  std::vector<at::Tensor> tensors;
  Status status = record::guard_escapes();
  for (const py::handle item : arguments)
    if (status.ok()) status = unpack(item, tensors);
  if (!status.ok()) {
    made->result = std::move(status);
    return made;
  }
  std::exception_ptr interrupt;  // no fault of the program: goes on to the caller
  const record::Program program = [&](const std::vector<at::Tensor>& given) {
    const py::gil_scoped_acquire gil;
    py::tuple inputs(given.size());
    for (std::size_t i = 0; i < given.size(); ++i) inputs[i] = tensor_or_none(given[i]);
    std::vector<c10::IValue> results;
    try {
      flatten(callable(*inputs), results);
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) interrupt = std::current_exception();
      throw;
    }
    return results;
  };
  {
    const py::gil_scoped_release no_gil;
    made->result = record::record(program, tensors, options);
  }
  if (interrupt) std::rethrow_exception(interrupt);
  if (!made->result.ok()) PyErr_Clear();  // some of PyTorch's C++ throws with Python's error set
  made->record_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start)
          .count();
  return made;
}

// Names of tensors that the module itself holds; fails on what the recorder would not see into.
Result<std::vector<std::string>> scan_module(const py::object& module) {
  const py::object higher_order = py::module_::import("torch._ops").attr("HigherOrderOperator");
  std::vector<std::string> names;
  const py::list nodes(module.attr("graph").attr("nodes"));
  for (const py::handle node : nodes)
    if (const py::object target = node.attr("target"); py::isinstance(target, higher_order))
      return Status(Code::kUnsupported,
                    "the higher-order operator " + std::string(py::str(target)));
  for (const py::handle node : nodes) {
    if (std::string(py::str(node.attr("op"))) != "get_attr") continue;
    const std::string name = py::str(node.attr("target"));
    const py::object value = py::module_::import("operator").attr("attrgetter")(name)(module);
    if (!THPVariable_Check(value.ptr()))
      return Status(Code::kUnsupported, "the attribute '" + name + "' is no tensor");
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

std::unique_ptr<Recording> record_fx(const py::object& module, const py::list& arguments,
                                     record::RecordOptions options) {
  Result<std::vector<std::string>> captured = scan_module(module);
  if (!captured.ok()) return std::make_unique<Recording>(Recording{captured.take_status(), {}, 0});
  if (captured->empty()) return record_program(module.attr("forward"), arguments, options);

  const py::object attribute = py::module_::import("operator").attr("attrgetter");
  // As torch.func.functional_call, less GraphModule's printing of errors.
  const py::object hold =
      py::module_::import("torch.nn.utils.stateless").attr("_reparametrize_module");
  const std::size_t own = arguments.size();
  py::list all;
  for (const py::handle item : arguments) all.append(item);
  options.argument_names.resize(own);
  for (std::size_t i = 0; i < own; ++i)
    if (options.argument_names[i].empty())
      options.argument_names[i] = "primals_" + std::to_string(i + 1);
  for (const std::string& name : *captured) {
    all.append(attribute(name)(module));
    options.argument_names.push_back(name);
  }
  const py::cpp_function call([&](const py::args& given) {
    py::dict values;
    for (std::size_t i = 0; i < captured->size(); ++i)
      values[py::str((*captured)[i])] = given[own + i];
    const py::tuple inputs = given[py::slice(0, static_cast<py::ssize_t>(own), 1)];
    const py::object held = hold(module, values);
    held.attr("__enter__")();
    const auto leave =
        c10::make_scope_exit([&] { held.attr("__exit__")(py::none(), py::none(), py::none()); });
    return module.attr("forward")(*inputs);
  });
  auto made = record_program(call, all, options);
  made->captured = std::move(*captured);
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

// The graph as the compiler takes one from TorchDynamo: every input a tensor, every output given.
std::unique_ptr<compiler::CompiledFunction> compile_graph(
    const ir::Graph& graph, const std::vector<std::pair<std::string, int>>& devices,
    runtime::Role role) {
  fx::Imported imported;
  imported.graph = graph;
  for (std::uint32_t i = 0; i < graph.inputs.size(); ++i)
    imported.arguments.push_back({fx::Argument::Kind::kTensor, i});
  for (std::uint32_t i = 0; i < graph.outputs.size(); ++i) imported.outputs.emplace_back(i);
  std::vector<runtime::Device*> targets;
  for (const auto& [name, index] : devices) {
    Result<runtime::Plugin*> plugin = runtime::Registry::instance().find(name);
    if (!plugin.ok()) throw py::value_error(plugin.status().message());
    Result<runtime::Device*> device = (*plugin)->device(static_cast<std::uint32_t>(index));
    if (!device.ok()) throw py::value_error(device.status().message());
    targets.push_back(*device);
  }
  compiler::FunctionOptions options;
  options.compile.role = role;
  std::optional<Result<std::unique_ptr<compiler::CompiledFunction>>> made;
  {
    const py::gil_scoped_release no_gil;
    made.emplace(compiler::CompiledFunction::compile(std::move(imported), targets, options));
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
