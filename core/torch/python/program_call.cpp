#include "core/torch/python/program_call.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <unordered_map>
#include <utility>

#include "core/base/c_stack.h"

namespace py = pybind11;

namespace backplane::python {

namespace {

thread_local std::exception_ptr g_interrupt;

constexpr std::size_t kLeastStack = 256 << 10;

// Whether it has no more than 64 bits.
bool fits(const py::handle& number, std::int64_t& out_value) {
  int overflow = 0;
  out_value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  return overflow == 0;
}

void flatten(const py::handle& result, std::vector<c10::IValue>& out) {
  if (c_stack_left() < kLeastStack) throw py::value_error("the program returns what has no end");
  if (THPVariable_Check(result.ptr())) {
    out.emplace_back(THPVariable_Unpack(result.ptr()));
  } else if (result.is_none()) {
    out.emplace_back();
  } else if (py::isinstance<py::bool_>(result)) {
    out.emplace_back(result.cast<bool>());
  } else if (py::isinstance<py::int_>(result)) {
    std::int64_t number = 0;
    if (!fits(result, number)) throw py::value_error("the program returns an int beyond 64 bits");
    out.emplace_back(number);
  } else if (py::isinstance<py::float_>(result)) {
    out.emplace_back(result.cast<double>());
  } else if (py::isinstance<py::str>(result)) {
    out.emplace_back(result.cast<std::string>());
  } else if (py::isinstance<py::dict>(result)) {
    for (const auto& [name, item] : py::reinterpret_borrow<py::dict>(result)) flatten(item, out);
  } else if (py::isinstance<py::tuple>(result) || py::isinstance<py::list>(result)) {
    for (const py::handle item : result) flatten(item, out);
  } else {
    throw py::type_error("the program returns a " + type_name(result));
  }
}

// "model.py:12" of the last frame in a stack trace as FX records it; empty where there is none.
std::string location_of(std::string_view trace) {
  const std::size_t file = trace.rfind("File \"");
  if (file == std::string_view::npos) return {};
  const std::size_t end = trace.find('"', file + 6);
  const std::size_t line = trace.find("line ", end);
  if (end == std::string_view::npos || line == std::string_view::npos) return {};
  std::string_view path = trace.substr(file + 6, end - file - 6);
  if (const std::size_t slash = path.rfind('/'); slash != std::string_view::npos)
    path.remove_prefix(slash + 1);
  std::size_t stop = line + 5;
  while (stop < trace.size() && trace[stop] >= '0' && trace[stop] <= '9') ++stop;
  return std::string(path) + ":" + std::string(trace.substr(line + 5, stop - line - 5));
}

// Which line of the module's generated code runs, as the place in the user's program.
record::Locate make_locate(const py::object& module, const py::list& nodes) {
  // TorchDynamo's modules generate their code when it is first needed.
  if (py::hasattr(module, "real_recompile")) module.attr("real_recompile")();
  if (!py::hasattr(module, "_lineno_map") || !py::hasattr(module, "_prologue_start") ||
      module.attr("_lineno_map").is_none())
    return {};
  std::vector<std::string> by_node;
  for (const py::handle node : nodes) {
    const py::object trace = node.attr("stack_trace");
    by_node.push_back(trace.is_none() ? std::string() : location_of(std::string(py::str(trace))));
  }
  auto by_line = std::make_shared<std::unordered_map<int, std::string>>();
  const auto start = module.attr("_prologue_start").cast<int>();
  for (const auto& [line, node] : py::dict(module.attr("_lineno_map")))
    if (!node.is_none())
      if (const auto index = node.cast<std::size_t>();
          index < by_node.size() && !by_node[index].empty())
        by_line->emplace(line.cast<int>() + start, by_node[index]);
  // Compared only: the module keeps it alive.
  PyObject* const code = module.attr("forward").attr("__code__").ptr();
  return [by_line, code]() -> const std::string* {
    const py::gil_scoped_acquire gil;
    py::object frame = py::reinterpret_steal<py::object>(
        reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
    while (frame) {
      auto* const now = reinterpret_cast<PyFrameObject*>(frame.ptr());
      const py::object running =
          py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(now)));
      if (running.ptr() == code) {
        const auto found = by_line->find(PyFrame_GetLineNumber(now));
        return found == by_line->end() ? nullptr : &found->second;
      }
      frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(now)));
    }
    return nullptr;
  };
}

}  // namespace

py::object tensor_or_none(const at::Tensor& tensor) {
  if (!tensor.defined()) return py::none();
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
}

std::string type_name(const py::handle& object) {
  return py::str(py::type::of(object).attr("__qualname__"));
}

std::shared_ptr<py::object> hold_object(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            if (Py_IsInitialized() == 0) {
              held->release();  // the interpreter is gone, and its objects with it
              delete held;
              return;
            }
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

Status to_argument(const py::handle& item, std::size_t position, c10::IValue& out_value) {
  const auto who = [&] { return "argument " + std::to_string(position); };
  if (THPVariable_Check(item.ptr())) {
    if (!THPVariable_CheckExact(item.ptr()) && type_name(item) != "FakeTensor")
      return Status(Code::kUnsupported, who() + " is of the tensor subclass " + type_name(item));
    out_value = THPVariable_Unpack(item.ptr());
  } else if (PyBool_Check(item.ptr())) {
    out_value = item.cast<bool>();
  } else if (PyLong_CheckExact(item.ptr())) {
    std::int64_t number = 0;
    if (!fits(item, number)) return Status(Code::kUnsupported, who() + " is an int beyond 64 bits");
    out_value = number;
  } else if (PyFloat_CheckExact(item.ptr())) {
    out_value = item.cast<double>();
  } else if (item.is_none()) {
    out_value = c10::IValue();
  } else {
    return Status(Code::kUnsupported, who() + " is a " + type_name(item) + ", not a tensor");
  }
  return {};
}

std::vector<c10::IValue> call_python(const py::object& callable,
                                     std::span<const c10::IValue> arguments) {
  const py::gil_scoped_acquire gil;
  py::tuple inputs(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i)
    inputs[i] = arguments[i].isTensor() ? tensor_or_none(arguments[i].toTensor())
                                        : torch::jit::toPyObject(arguments[i]);
  std::vector<c10::IValue> results;
  try {
    flatten(callable(*inputs), results);
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) g_interrupt = std::current_exception();
    throw;
  }
  return results;
}

void rethrow_interrupt() {
  if (g_interrupt) std::rethrow_exception(std::exchange(g_interrupt, nullptr));
}

namespace {

// A custom function: its operator calls `apply` of one that runs the two modules it is given.
bool is_function_apply(const py::handle& target) {
  return std::string(py::str(target)) == "autograd_function_apply";
}

bool is_attribute(const py::handle& node) {
  return std::string(py::str(node.attr("op"))) == "get_attr";
}

py::object attribute_of(const py::object& module, const py::handle& node) {
  return py::module_::import("operator").attr("attrgetter")(node.attr("target"))(module);
}

bool is_module(const py::object& value) {
  return py::isinstance(value, py::module_::import("torch.nn").attr("Module"));
}

Status check_operators(const py::object& module) {
  const py::object higher_order = py::module_::import("torch._ops").attr("HigherOrderOperator");
  for (const py::handle node : py::list(module.attr("graph").attr("nodes"))) {
    const py::object target = node.attr("target");
    if (py::isinstance(target, higher_order) && !is_function_apply(target))
      return Status(Code::kUnsupported,
                    "the higher-order operator " + std::string(py::str(target)));
  }
  return {};
}

// The forward or backward of a custom function: all that it computes with is handed to it.
Status check_body(const py::object& module) {
  BP_RETURN_IF_ERROR(check_operators(module));
  for (const py::handle node : py::list(module.attr("graph").attr("nodes"))) {
    if (!is_attribute(node)) continue;
    const py::object value = attribute_of(module, node);
    if (!is_module(value))
      return Status(Code::kUnsupported, "a custom function holds a tensor of its own");
    BP_RETURN_IF_ERROR(check_body(value));
  }
  return {};
}

}  // namespace

Result<ModuleProgram> module_program(const py::object& module, std::size_t own_count) {
  ModuleProgram made;
  const py::list nodes(module.attr("graph").attr("nodes"));
  BP_RETURN_IF_ERROR(check_operators(module));
  for (const py::handle node : nodes) {
    if (!is_attribute(node)) continue;
    const std::string name = py::str(node.attr("target"));
    if (std::ranges::find(made.captured_names, name) != made.captured_names.end()) continue;
    const py::object value = attribute_of(module, node);
    if (is_module(value)) {
      BP_RETURN_IF_ERROR(check_body(value));
      continue;
    }
    if (!THPVariable_Check(value.ptr()))
      return Status(Code::kUnsupported, "the attribute '" + name + "' is no tensor");
    made.captured_names.push_back(name);
    made.captured.push_back(THPVariable_Unpack(value.ptr()));
  }
  made.locate = make_locate(module, nodes);
  if (made.captured.empty()) {
    made.callable = module.attr("forward");
    return made;
  }
  // As torch.func.functional_call, less GraphModule's printing of errors.
  const py::object hold =
      py::module_::import("torch.nn.utils.stateless").attr("_reparametrize_module");
  made.callable = py::cpp_function([module, hold, names = made.captured_names,
                                    own_count](const py::args& given) {
    py::dict values;
    for (std::size_t i = 0; i < names.size(); ++i) values[py::str(names[i])] = given[own_count + i];
    const py::tuple inputs = given[py::slice(0, static_cast<py::ssize_t>(own_count), 1)];
    const py::object held = hold(module, values);
    held.attr("__enter__")();
    const auto leave =
        c10::make_scope_exit([&] { held.attr("__exit__")(py::none(), py::none(), py::none()); });
    return module.attr("forward")(*inputs);
  });
  return made;
}

}  // namespace backplane::python
