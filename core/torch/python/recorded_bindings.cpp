#include "core/torch/python/recorded_bindings.h"
#include "core/torch/bridge/held_signals.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/torch/autograd/joint_node.h"
#include "core/torch/bridge/errors.h"
#include "core/torch/compiler/recorded_function.h"
#include "core/torch/compiler/verification.h"
#include "core/torch/python/devices.h"
#include "core/torch/python/program_call.h"
#include "core/torch/record/escape.h"

namespace py = pybind11;

namespace backplane::python {

namespace {

// The module's own tensors go behind the arguments of each call. `numbers` are arguments that are
// Python floats in a tensor: the program reads their value and nothing else.
struct RecordedGraph {
  std::vector<std::uint32_t> numbers;
  std::vector<at::Tensor> captured;
  std::unique_ptr<compiler::RecordedFunction> function;
};

Status to_arguments(const RecordedGraph& graph, const py::args& items,
                    std::vector<c10::IValue>& out_arguments) {
  out_arguments.resize(items.size());
  for (std::size_t i = 0; i < items.size(); ++i)
    BP_RETURN_IF_ERROR(to_argument(items[i], i, out_arguments[i]));
  for (const std::uint32_t i : graph.numbers)
    out_arguments[i] = out_arguments[i].toTensor().item().toDouble();
  out_arguments.insert(out_arguments.end(), graph.captured.begin(), graph.captured.end());
  return {};
}

py::tuple to_python(std::vector<c10::IValue> values) {
  py::tuple out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    out[i] = values[i].isTensor() ? tensor_or_none(std::move(values[i]).toTensor())
                                  : torch::jit::toPyObject(std::move(values[i]));
  return out;
}

py::object call(const RecordedGraph& graph, const py::args& items) {
  std::vector<c10::IValue> arguments;
  if (!to_arguments(graph, items, arguments).ok()) return py::none();
  for (const py::handle item : items)  // to_argument lets fake tensors pass, which have no memory
    if (THPVariable_Check(item.ptr()) && !THPVariable_CheckExact(item.ptr())) return py::none();
  std::optional<Result<std::vector<c10::IValue>>> results;
  {
    const py::gil_scoped_release no_gil;
    results = graph.function->try_call(arguments);
    arguments.clear();
  }
  if (!results) return py::none();
  return to_python(unwrap(std::move(*results)));
}

py::list add(const RecordedGraph& graph, const py::args& items) {
  std::vector<c10::IValue> arguments;
  Status status = record::guard_escapes();
  if (status.ok()) status = to_arguments(graph, items, arguments);
  if (!status.ok()) raise(status);
  std::vector<compiler::Stage> stages;
  const bridge::HeldSignals held;
  {
    const py::gil_scoped_release no_gil;
    status = graph.function->add(arguments, [&](compiler::Stage stage) -> Status {
      stages.push_back(std::move(stage));
      return {};
    });
  }
  rethrow_interrupt();
  if (bridge::is_raised(status)) throw py::error_already_set();
  if (!status.ok()) {
    PyErr_Clear();  // some of PyTorch's C++ throws with Python's error set
    raise(status);
  }
  py::list out;
  for (compiler::Stage& stage : stages)
    out.append(py::make_tuple(compiler::role_name(stage.role), std::move(stage.function),
                              std::move(stage.cut), stage.saved_bytes, stage.recompute_seconds));
  return out;
}

py::dict counts(const RecordedGraph& graph) {
  const compiler::RecordedFunction::Counts counts = graph.function->counts();
  py::dict out;
  out["recordings"] = counts.recordings;
  out["record_ns"] = counts.record_ns;
  out["sizes"] = counts.sizes;
  out["structures"] = counts.structures;
  out["splits"] = counts.splits;
  return out;
}

std::unique_ptr<RecordedGraph> make_graph(
    const py::object& program_object, std::size_t argument_count,
    const std::vector<std::pair<std::string, int>>& devices, std::string name, bool pack_inference,
    bool pack_training, double memory_budget, std::vector<std::string> argument_names,
    std::vector<std::uint32_t> static_arguments,
    const std::vector<std::tuple<std::uint32_t, std::int32_t, std::uint32_t>>& dynamic_sizes,
    std::vector<std::uint32_t> numbers, std::vector<std::uint32_t> buffers, double verify,
    bool strict) {
  ModuleProgram program{program_object, {}, {}, {}};
  if (py::hasattr(program_object, "graph"))
    program = unwrap(module_program(program_object, argument_count));
  compiler::RecordedOptions options;
  options.cut.name = std::move(name);
  options.cut.devices = find_devices(devices);
  options.cut.pack_inference = pack_inference;
  options.cut.pack_training = pack_training;
  options.cut.memory_budget = memory_budget;
  options.cut.verify = {verify, strict};
  options.argument_names = std::move(argument_names);
  options.argument_names.resize(argument_count);
  options.static_arguments = std::move(static_arguments);
  options.buffers = std::move(buffers);
  options.locate = std::move(program.locate);
  for (const auto& [argument, dim, symbol] : dynamic_sizes)
    options.dynamic_sizes.push_back({argument, dim, symbol});
  for (std::size_t i = 0; i < program.captured.size(); ++i) {
    options.argument_names.push_back(program.captured_names[i]);
    options.static_arguments.push_back(static_cast<std::uint32_t>(argument_count + i));
  }
  // Freed wherever the last history that can call it goes.
  const std::shared_ptr<py::object> callable = hold_object(std::move(program.callable));
  auto made = std::make_unique<RecordedGraph>();
  made->numbers = numbers;
  made->captured = std::move(program.captured);
  made->function = std::make_unique<compiler::RecordedFunction>(
      [callable, numbers = std::move(numbers)](std::span<const c10::IValue> arguments) {
        if (numbers.empty()) return call_python(*callable, arguments);
        std::vector<c10::IValue> given(arguments.begin(), arguments.end());
        for (const std::uint32_t i : numbers)
          if (given[i].isDouble()) given[i] = at::scalar_tensor(given[i].toDouble(), at::kDouble);
        return call_python(*callable, given);
      },
      std::move(options));
  return made;
}

}  // namespace

void register_recorded(py::module_& module) {
  // Of an FX graph module, or of any callable that takes and gives tensors.
  py::class_<RecordedGraph>(module, "RecordedGraph")
      .def(py::init(&make_graph), py::arg("program"), py::arg("argument_count"), py::arg("devices"),
           py::arg("name"), py::arg("pack_inference"), py::arg("pack_training"),
           py::arg("memory_budget"), py::arg("argument_names"), py::arg("static_arguments"),
           py::arg("dynamic_sizes") =
               std::vector<std::tuple<std::uint32_t, std::int32_t, std::uint32_t>>(),
           py::arg("numbers") = std::vector<std::uint32_t>(),
           py::arg("buffers") = std::vector<std::uint32_t>(), py::arg("verify") = 0.0,
           py::arg("strict") = false)
      // A tuple of the graph's outputs; None where these sizes are not known yet.
      // ATen's errors keep their Python types (IndexError, ...).
      .def("__call__", torch::wrap_pybind_function(call))
      // Makes the sizes of these arguments known: [(role, CompiledFunction, cut, saved bytes,
      // seconds of recomputing)] of what was compiled; `cut` says what a forward saves.
      .def("add", add)
      .def("counts", counts);
  module.def("take_forward_failure", autograd::take_forward_failure);
  module.def("second_differentiations", autograd::second_differentiations);
  module.def("refused_calls", compiler::refused_calls);
  // (calls, differences) of the option verify, since the process started.
  module.def("verification_counts", [] {
    const compiler::VerificationCounts counts = compiler::verification_counts();
    return std::make_pair(counts.calls, counts.differences);
  });
}

}  // namespace backplane::python
