#include "core/torch/bridge/held_signals.h"

#include <csignal>
#include <deque>
#include <utility>
#include <vector>

#include "core/cpython/bytecode/py_error.h"

namespace backplane::bridge {

namespace {

using cpython::Ref;
using cpython::SavedError;
using cpython::set_exception;
using cpython::take_exception;

struct Handler {
  int number = 0;
  Ref function;
};

// Of the main thread, which alone runs handlers.
struct State {
  bool is_holding = false, is_passing = false;
  std::vector<Handler> handlers;  // in whose place `note` stands
  std::deque<Handler> due;        // of signals that have come
  Ref raised;                     // by one that ran before its time, or with `is_passing`
  bool is_pending = false;        // CPython will ask for what is due
};

State& state() {
  static auto* const made = new State;  // never ends: handlers may run while the interpreter does
  return *made;
}

bool call_handler(const Handler& handler) {
  PyObject* frame = reinterpret_cast<PyObject*>(PyEval_GetFrame());
  const Ref result = Ref::steal(
      PyObject_CallFunction(handler.function.get(), "iO", handler.number, frame ? frame : Py_None));
  return static_cast<bool>(result);
}

PyObject* note(PyObject*, PyObject* arguments) {
  int number = 0;
  PyObject* frame = nullptr;
  if (!PyArg_ParseTuple(arguments, "iO", &number, &frame)) return nullptr;
  State& own = state();
  for (const Handler& handler : own.handlers) {
    if (handler.number != number) continue;
    const Handler found = handler;
    if (!own.is_passing) {
      own.due.push_back(found);
    } else if (!call_handler(found)) {
      own.raised = take_exception();
      set_exception(own.raised);
      return nullptr;
    }
    break;
  }
  return Py_NewRef(Py_None);
}

struct SignalModule {
  Ref get, set, note;
};

const SignalModule& signal_module() {
  static const SignalModule* const module = [] {
    static PyMethodDef method{"_note_signal", note, METH_VARARGS, nullptr};
    auto* made = new SignalModule;
    const Ref own = Ref::steal(PyImport_ImportModule("_signal"));
    if (own) made->get = Ref::steal(PyObject_GetAttrString(own.get(), "getsignal"));
    if (own) made->set = Ref::steal(PyObject_GetAttrString(own.get(), "signal"));
    made->note = Ref::steal(PyCFunction_New(&method, nullptr));
    return made;
  }();
  return *module;
}

Ref handler_of(int number) {
  return Ref::steal(PyObject_CallFunction(signal_module().get.get(), "i", number));
}

// As signal.signal(), but for the flags of the signal, which stay.
bool set_handler(int number, PyObject* function) {
  struct sigaction before;
  const bool is_known = sigaction(number, nullptr, &before) == 0;
  const Ref old =
      Ref::steal(PyObject_CallFunction(signal_module().set.get(), "iO", number, function));
  if (old && is_known) sigaction(number, &before, nullptr);
  return static_cast<bool>(old);
}

int run_pending(void*) {
  state().is_pending = false;
  return run_held_signals() ? 0 : -1;
}

}  // namespace

HeldSignals::HeldSignals() {
  State& own = state();
  if (_PyOS_IsMainThread() == 0 || own.is_holding) return;
  const SavedError saved;
  is_outermost_ = own.is_holding = true;
  const SignalModule& module = signal_module();
  if (!module.get || !module.set || !module.note) {
    PyErr_Clear();
    return;
  }
  for (int number = 1; number < NSIG; ++number) {
    Ref function = handler_of(number);
    if (!function) PyErr_Clear();  // no signal
    if (!function || !PyCallable_Check(function.get()) || PyLong_Check(function.get())) continue;
    own.handlers.push_back({number, std::move(function)});
    // Runs the handlers of signals that have come already.
    while (!set_handler(number, module.note.get())) own.raised = take_exception();
  }
}

HeldSignals::~HeldSignals() {
  if (!is_outermost_) return;
  const SavedError saved;
  State& own = state();
  for (const Handler& handler : own.handlers) {
    const Ref now = handler_of(handler.number);
    if (now.get() != signal_module().note.get()) continue;  // another was set meanwhile
    while (!set_handler(handler.number, handler.function.get())) own.raised = take_exception();
  }
  own.handlers.clear();
  own.is_holding = false;
  if ((own.raised || !own.due.empty()) && !own.is_pending)
    own.is_pending = Py_AddPendingCall(run_pending, nullptr) == 0;
}

PassedSignals::PassedSignals()
    : was_passing_(_PyOS_IsMainThread() != 0 && std::exchange(state().is_passing, true)) {}

PassedSignals::~PassedSignals() {
  if (_PyOS_IsMainThread() != 0) state().is_passing = was_passing_;
}

bool PassedSignals::raise_again() {
  if (_PyOS_IsMainThread() == 0 || !state().raised) return false;
  PyErr_Clear();
  set_exception(std::exchange(state().raised, {}));
  return true;
}

bool run_held_signals() {
  if (_PyOS_IsMainThread() == 0) return true;
  if (PyErr_CheckSignals() != 0) return false;
  State& own = state();
  if (own.raised) {
    set_exception(std::exchange(own.raised, {}));
    return false;
  }
  while (!own.due.empty()) {
    const Handler handler = std::move(own.due.front());
    own.due.pop_front();
    if (!call_handler(handler)) return false;
  }
  return true;
}

}  // namespace backplane::bridge
