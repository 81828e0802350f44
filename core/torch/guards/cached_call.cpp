#include "core/torch/guards/cached_call.h"

#include "core/cpython/frame/hook.h"
#include "core/cpython/frame/running_frame.h"

namespace backplane::guards {

namespace {

using cpython::Ref;

// Ends each frame of the program before it begins.
class RefusingEvaluator final : public cpython::Evaluator {
 public:
  PyObject* evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) override {
    if (const auto ran = cpython::evaluate_interruption(thread, frame, throwing)) return *ran;
    const cpython::UnrunFrame unrun(thread, frame);
    PyErr_SetString(PyExc_LookupError, "the cache does not have it");
    return nullptr;
  }
};

PyObject* call(PyObject* function, PyObject* arguments) {
  PyObject* const keywords = PyTuple_GET_ITEM(arguments, 1);
  return PyObject_Call(function, PyTuple_GET_ITEM(arguments, 0),
                       keywords == Py_None ? nullptr : keywords);
}

}  // namespace

bool is_cached_function(PyObject* object) {
  static PyTypeObject* const known = [] {
    const Ref module = Ref::steal(PyImport_ImportModule("functools"));
    PyObject* type = module ? PyObject_GetAttrString(module.get(), "_lru_cache_wrapper") : nullptr;
    if (!type) PyErr_Clear();
    return reinterpret_cast<PyTypeObject*>(type);
  }();
  return known && Py_TYPE(object) == known;
}

cpython::Ref find_cached(PyObject* function, PyObject* arguments) {
  RefusingEvaluator refusing;
  const cpython::Region region(refusing);
  Ref found = Ref::steal(call(function, arguments));
  if (!found) PyErr_Clear();
  return found;
}

cpython::Ref call_cached(PyObject* function, PyObject* arguments) {
  return Ref::steal(call(function, arguments));
}

}  // namespace backplane::guards
