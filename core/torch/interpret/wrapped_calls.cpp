// Functions that stand around others and change nothing of what they compute.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/cpython/frame/hook.h"
#include "core/torch/interpret/interpreter.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

// Of torch.utils.checkpoint.checkpoint, not of the function it is given.
constexpr std::array<std::string_view, 6> kCheckpointOptions{"use_reentrant", "preserve_rng_state",
                                                             "context_fn",    "determinism_check",
                                                             "debug",         "early_stop"};

bool is_checkpoint_option(PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  return text && std::find(kCheckpointOptions.begin(), kCheckpointOptions.end(), text) !=
                     kCheckpointOptions.end();
}

bool requires_gradients(PyObject* argument) {
  return THPVariable_Check(argument) && THPVariable_Unpack(argument).requires_grad();
}

// Whether a wrapper has the function itself, in C or in a cell: functools.wraps may have given it
// the
// __wrapped__ of another since.
bool holds(PyObject* wrapper, PyObject* function) {
  if (PyObject* closure = PyFunction_Check(wrapper) ? PyFunction_GET_CLOSURE(wrapper) : nullptr) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(closure); ++i)
      if (PyCell_GET(PyTuple_GET_ITEM(closure, i)) == function) return true;
    return false;
  }
  struct Search {
    PyObject* wanted;
    bool found = false;
  };
  Search search{function};
  if (Py_TYPE(wrapper)->tp_traverse)
    Py_TYPE(wrapper)->tp_traverse(
        wrapper,
        [](PyObject* referent, void* state) {
          auto* const looking = static_cast<Search*>(state);
          looking->found = looking->found || referent == looking->wanted;
          return 0;
        },
        &search);
  return search.found;
}

}  // namespace

PyObject* Interpreter::call_wrapped(PyObject* wrapper, PyObject* const* arguments,
                                    std::size_t count, PyObject* keyword_names) {
  static PyObject* const name = PyUnicode_InternFromString("__wrapped__");
  const Ref wrapped = Ref::steal(attribute(wrapper, name));
  if (wrapped && !holds(wrapper, wrapped.get()))
    return world_.stop("the program calls a wrapper that carries the name of another function");
  return wrapped ? call(wrapped.get(), arguments, count, keyword_names) : nullptr;
}

// Of a text the pattern is always the same.
PyObject* Interpreter::call_re_compile(PyObject* function, PyObject* const* arguments,
                                       std::size_t count, PyObject* keyword_names) {
  if (count != 2 || keyword_count(keyword_names) != 0 || !is_primitive(arguments[0]) ||
      !hold_argument(arguments[1]))
    return world_.stop("the program makes a regular expression in an unusual way");
  const Ref pattern = Ref::steal(cpython::call_unhooked(function, arguments, count, nullptr));
  return pattern ? world_.read_constant(pattern.get()) : nullptr;
}

// What is registered may change: the guards ask again. Its own cache is nobody's business.
PyObject* Interpreter::call_dispatch(PyObject* dispatch, PyObject* const* arguments,
                                     std::size_t count, PyObject* keyword_names) {
  if (count != 1 || keyword_count(keyword_names) != 0 || !PyType_Check(arguments[0]))
    return world_.stop("the program asks singledispatch in an unusual way");
  const Ref key = Ref::steal(PyTuple_Pack(1, arguments[0]));
  const Ref answer = Ref::steal(cpython::call_unhooked(dispatch, arguments, count, nullptr));
  if (!key || !answer) return nullptr;
  world_.guards().guard_answer(dispatch, key.get(), answer.get());
  return world_.read_constant(answer.get());
}

PyObject* Interpreter::call_checkpointed(PyObject* const* arguments, std::size_t count,
                                         PyObject* keyword_names) {
  if (count == 0) return world_.stop("the program calls checkpoint in an unusual way");
  std::vector<PyObject*> kept(arguments + 1, arguments + count);
  const bool has_gradients = std::ranges::any_of(kept, requires_gradients);
  bool is_reentrant = true;  // unless it is told otherwise
  const Ref names = Ref::steal(PyList_New(0));
  const Py_ssize_t named = keyword_names ? PyTuple_GET_SIZE(keyword_names) : 0;
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* name = PyTuple_GET_ITEM(keyword_names, i);
    if (PyUnicode_CompareWithASCIIString(name, "context_fn") == 0)
      return world_.stop("the program calls checkpoint with a context of its own");
    if (PyUnicode_CompareWithASCIIString(name, "use_reentrant") == 0) {
      PyObject* const reentrant = arguments[count + static_cast<std::size_t>(i)];
      is_reentrant = reentrant != Py_False;
    }
    if (is_checkpoint_option(name)) continue;
    if (PyList_Append(names.get(), name) != 0) return nullptr;
    kept.push_back(arguments[count + static_cast<std::size_t>(i)]);
  }
  // Its parameters get none then, whatever they require, and it warns.
  if (is_reentrant && !has_gradients && at::GradMode::is_enabled())
    return world_.stop("the program gives a reentrant checkpoint nothing that requires gradients");
  const Ref kept_names = Ref::steal(PyList_AsTuple(names.get()));
  has_checkpointed_ = true;
  return kept_names ? call(arguments[0], kept.data(), count - 1, kept_names.get()) : nullptr;
}

}  // namespace backplane::capture
