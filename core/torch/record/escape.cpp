#include <Python.h>
//
#include "core/torch/record/escape.h"

#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "core/torch/record/session.h"
#include "core/torch/record/value_tensor.h"

namespace backplane::record {

namespace {

struct Escape {
  const char* owner;  // module and type, empty: a function of the module
  const char* name;
};
constexpr std::array<Escape, 4> kEscapes{{
    {"TensorBase", "numpy"},
    {"TensorBase", "data_ptr"},
    {"", "_to_dlpack"},
    {"", "_to_dlpack_versioned"},
}};

std::array<PyCFunction, kEscapes.size()> g_originals{};

PyObject* refuse(const char* name) {
  const std::string reason =
      std::string(name) + "() reads the memory of a tensor while the program is being recorded";
  if (Session* session = Session::current()) session->note_error(reason.c_str());
  PyErr_SetString(PyExc_RuntimeError, reason.c_str());
  return nullptr;
}

bool is_value(PyObject* object) {
  return object && THPVariable_Check(object) && find_wrapped_value(THPVariable_Unpack(object));
}

// The tensor is `self` of a method, or the first argument of a function.
template <std::size_t kIndex>
PyObject* with_keywords(PyObject* self, PyObject* arguments, PyObject* keywords) {
  PyObject* const first = arguments && PyTuple_Check(arguments) && PyTuple_GET_SIZE(arguments) > 0
                              ? PyTuple_GET_ITEM(arguments, 0)
                              : nullptr;
  if (is_value(self) || is_value(first)) return refuse(kEscapes[kIndex].name);
  return reinterpret_cast<PyCFunctionWithKeywords>(
      reinterpret_cast<void (*)()>(g_originals[kIndex]))(self, arguments, keywords);
}

template <std::size_t kIndex>
PyObject* without_keywords(PyObject* self, PyObject* argument) {
  if (is_value(self) || is_value(argument)) return refuse(kEscapes[kIndex].name);
  return g_originals[kIndex](self, argument);
}

// The entry is the one PyTorch's type was built from, so its identity, which TorchDynamo and others
// compare, stays.
PyMethodDef* find_method(const Escape& escape) {
  PyObject* module = PyImport_ImportModule("torch._C");
  if (!module) return nullptr;
  PyObject* owner =
      *escape.owner ? PyObject_GetAttrString(module, escape.owner) : Py_NewRef(module);
  PyObject* method = owner ? PyObject_GetAttrString(owner, escape.name) : nullptr;
  PyMethodDef* found = nullptr;
  if (method && PyObject_TypeCheck(method, &PyMethodDescr_Type))
    found = reinterpret_cast<PyMethodDescrObject*>(method)->d_method;
  else if (method && PyCFunction_Check(method))
    found = reinterpret_cast<PyCFunctionObject*>(method)->m_ml;
  PyErr_Clear();
  // The owner keeps both alive.
  Py_XDECREF(method);
  Py_XDECREF(owner);
  Py_DECREF(module);
  return found;
}

template <std::size_t kIndex>
bool install() {
  PyMethodDef* const method = find_method(kEscapes[kIndex]);
  if (!method) return false;
  g_originals[kIndex] = method->ml_meth;
  if (method->ml_flags & METH_KEYWORDS)
    method->ml_meth =
        reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&with_keywords<kIndex>));
  else if (method->ml_flags & (METH_NOARGS | METH_O))
    method->ml_meth = &without_keywords<kIndex>;
  else
    return false;
  return true;
}

template <std::size_t... kIndices>
bool install_all(std::index_sequence<kIndices...> /*indices*/) {
  return (install<kIndices>() && ...);
}

}  // namespace

Status guard_escapes() {
  static const bool installed = install_all(std::make_index_sequence<kEscapes.size()>());
  if (installed) return {};
  return Status(Code::kUnsupported,
                "This build of torch gives access to tensors' memory in a way that the recorder "
                "does not know.");
}

}  // namespace backplane::record
