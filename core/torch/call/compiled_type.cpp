// The Python side of CompiledCallable: a type with vectorcall that binds like a function.
#include <Python.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>

#include <cstddef>
#include <new>
#include <utility>

#include "core/torch/bridge/errors.h"
#include "core/torch/call/compiled.h"
#include "core/torch/frames/type_slot.h"
#include "core/torch/interpret/interpreter.h"

namespace backplane::call {

namespace {

struct CompiledObject {
  PyObject ob_base;
  vectorcallfunc vectorcall;
  PyObject* dict;
  PyObject* weak_references;
  CompiledCallable* state;
};

CompiledObject* as_compiled(PyObject* object) { return reinterpret_cast<CompiledObject*>(object); }

PyObject* call_compiled(PyObject* self, PyObject* const* values, std::size_t flagged_count,
                        PyObject* keyword_names) {
  const auto count = static_cast<std::size_t>(PyVectorcall_NARGS(flagged_count));
  HANDLE_TH_ERRORS
  // The call may drop the last reference to its own object.
  const cpython::Ref held = cpython::Ref::borrow(self);
  return bridge::checked(as_compiled(self)->state->call({values, count, keyword_names}));
  END_HANDLE_TH_ERRORS
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_compiled(self)->dict);
  cpython::OwnedRefs refs(visit, arg);
  if (as_compiled(self)->state) refs.show(*as_compiled(self)->state);
  return refs.status();
}

int clear(PyObject* self) {
  Py_CLEAR(as_compiled(self)->dict);
  // The target stays, as a method's function does: whoever calls the object meanwhile finds it.
  if (as_compiled(self)->state) as_compiled(self)->state->reset();
  return 0;
}

void dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  CompiledObject* object = as_compiled(self);
  if (object->weak_references) PyObject_ClearWeakRefs(self);
  Py_CLEAR(object->dict);
  delete std::exchange(object->state, nullptr);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* bind(PyObject* self, PyObject* owner, PyObject*) {
  return owner && owner != Py_None ? PyMethod_New(self, owner) : Py_NewRef(self);
}

PyObject* represent(PyObject* self) {
  return PyUnicode_FromFormat("<compiled %R>", as_compiled(self)->state->target());
}

PyObject* get_target(PyObject* self, void*) {
  return Py_NewRef(as_compiled(self)->state->target());
}

// What is asked of the function, such as its defaults and code, is the function's own.
PyObject* get_attribute(PyObject* self, PyObject* name) {
  PyObject* found = PyObject_GenericGetAttr(self, name);
  PyObject* target = as_compiled(self)->state->target();
  if (found || !PyFunction_Check(target) || !PyErr_ExceptionMatches(PyExc_AttributeError))
    return found;
  PyErr_Clear();
  return PyObject_GetAttr(target, name);
}

// Copying and pickling are Python's.
template <const char* kName>
PyObject* by_python(PyObject* self, PyObject* argument) {
  const cpython::Ref module =
      cpython::Ref::steal(PyImport_ImportModule("torch_backplane.frontend"));
  const cpython::Ref function =
      module ? cpython::Ref::steal(PyObject_GetAttrString(module.get(), kName)) : cpython::Ref();
  return function ? PyObject_CallFunctionObjArgs(function.get(), self, argument, nullptr) : nullptr;
}

constexpr char kCopied[] = "copied", kCopiedDeep[] = "copied_deep", kReduced[] = "reduced";

PyMethodDef methods[] = {
    {"__copy__", by_python<kCopied>, METH_NOARGS, nullptr},
    {"__deepcopy__", by_python<kCopiedDeep>, METH_O, nullptr},
    {"__reduce_ex__", by_python<kReduced>, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CompiledObject, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(CompiledObject, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(CompiledObject, weak_references), READONLY,
     nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef properties[] = {
    {"target", get_target, nullptr, "The function as it was.", nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyObject* target_of(PyObject* self) { return as_compiled(self)->state->target(); }

}  // namespace

PyTypeObject* compiled_type() {
  static PyTypeObject* const type = [] {
    PyType_Slot slots[] = {
        {Py_tp_call, slot(PyVectorcall_Call)},
        {Py_tp_traverse, slot(traverse)},
        {Py_tp_clear, slot(clear)},
        {Py_tp_dealloc, slot(dealloc)},
        {Py_tp_descr_get, slot(bind)},
        {Py_tp_getattro, slot(get_attribute)},
        {Py_tp_repr, slot(represent)},
        {Py_tp_members, members},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {0, nullptr},
    };
    PyType_Spec spec{"torch_backplane._C.Compiled", sizeof(CompiledObject), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                         Py_TPFLAGS_DISALLOW_INSTANTIATION,
                     slots};
    auto* made = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (made) capture::look_through(made, target_of);
    return made;
  }();
  return type;
}

PyObject* make_compiled(PyObject* target, CompiledOptions options) {
  PyTypeObject* type = compiled_type();
  PyObject* self = type ? type->tp_alloc(type, 0) : nullptr;
  if (!self) return nullptr;
  CompiledObject* object = as_compiled(self);
  object->vectorcall = call_compiled;
  object->state = new CompiledCallable(target, std::move(options));
  return self;
}

CompiledCallable* find_compiled(PyObject* object) {
  return Py_TYPE(object) == compiled_type() ? as_compiled(object)->state : nullptr;
}

}  // namespace backplane::call
