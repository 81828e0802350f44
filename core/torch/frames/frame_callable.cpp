#include "core/torch/frames/frame_callable.h"

#include <structmember.h>
#include <torch/csrc/Exceptions.h>

#include <cstddef>
#include <utility>

#include "core/torch/bridge/errors.h"
#include "core/torch/frames/type_slot.h"

namespace backplane::call {

namespace {

struct State {
  std::string name;
  FrameFunction function;
};

struct FrameCallable {
  PyObject ob_base;
  vectorcallfunc vectorcall;
  State* state;
};

FrameCallable* as_callable(PyObject* object) { return reinterpret_cast<FrameCallable*>(object); }

PyObject* call(PyObject* self, PyObject* const* values, std::size_t flagged_count,
               PyObject* keyword_names) {
  if (keyword_names && PyTuple_GET_SIZE(keyword_names) != 0) {
    PyErr_SetString(PyExc_TypeError, "a part of a compiled function takes no keywords");
    return nullptr;
  }
  HANDLE_TH_ERRORS
  return bridge::checked(as_callable(self)->state->function(
      values, static_cast<std::size_t>(PyVectorcall_NARGS(flagged_count))));
  END_HANDLE_TH_ERRORS
}

void dealloc_callable(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete std::exchange(as_callable(self)->state, nullptr);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* represent_callable(PyObject* self) {
  return PyUnicode_FromString(as_callable(self)->state->name.c_str());
}

PyMemberDef callable_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(FrameCallable, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyTypeObject* callable_type() {
  static PyTypeObject* const type = [] {
    PyType_Slot slots[] = {
        {Py_tp_call, slot(PyVectorcall_Call)},
        {Py_tp_dealloc, slot(dealloc_callable)},
        {Py_tp_repr, slot(represent_callable)},
        {Py_tp_members, callable_members},
        {0, nullptr},
    };
    PyType_Spec spec{
        "torch_backplane._C.FrameFunction", sizeof(FrameCallable), 0,
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  }();
  return type;
}

}  // namespace

PyObject* make_frame_callable(std::string name, FrameFunction function) {
  PyTypeObject* type = callable_type();
  PyObject* self = type ? type->tp_alloc(type, 0) : nullptr;
  if (!self) return nullptr;
  as_callable(self)->vectorcall = call;
  as_callable(self)->state = new State{std::move(name), std::move(function)};
  return self;
}

}  // namespace backplane::call
