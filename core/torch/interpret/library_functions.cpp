#include "core/torch/interpret/library_functions.h"

#include <torch/csrc/Device.h>

#include <cstring>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/cpython/bytecode/py_ref.h"
#include "core/torch/guards/content.h"
#include "core/torch/interpret/interpreter.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

// A new reference kept for good, or null.
PyObject* find(const char* module, std::initializer_list<const char*> path) {
  Ref found = Ref::steal(PyImport_ImportModule(module));
  for (const char* name : path)
    if (found) found = Ref::steal(PyObject_GetAttrString(found.get(), name));
  PyErr_Clear();
  return found.release();
}

PyObject* code_of(PyObject* function) {
  return function && PyFunction_Check(function) ? PyFunction_GET_CODE(function) : nullptr;
}

// Of a function that is defined in `function`; borrowed, or null.
PyObject* inner_code(PyObject* function, const char* name) {
  PyObject* const code = code_of(function);
  PyObject* const constants = code ? reinterpret_cast<PyCodeObject*>(code)->co_consts : nullptr;
  for (Py_ssize_t i = 0; constants && i < PyTuple_GET_SIZE(constants); ++i) {
    PyObject* const one = PyTuple_GET_ITEM(constants, i);
    if (PyCode_Check(one) &&
        PyUnicode_CompareWithASCIIString(reinterpret_cast<PyCodeObject*>(one)->co_name, name) == 0)
      return one;
  }
  return nullptr;
}

// Found in the class, below `object` and its like, as a Python function.
bool is_in_python(PyTypeObject* type, const char* name) {
  const Ref text = Ref::steal(PyUnicode_InternFromString(name));
  PyObject* found = _PyType_Lookup(type, text.get());
  return found && PyFunction_Check(found);
}

// The objects in a container, keys too, behind `out`. False where what they print depends on their
// order, which depends on addresses.
bool list_content(PyObject* container, std::vector<PyObject*>& out) {
  Py_ssize_t position = 0;
  PyObject *key, *value;
  Py_hash_t hash;
  if (PyDict_CheckExact(container)) {
    while (PyDict_Next(container, &position, &key, &value)) out.insert(out.end(), {key, value});
  } else if (PyAnySet_Check(container)) {
    while (_PySet_NextEntry(container, &position, &key, &hash))
      if (!is_primitive(key)) return false;
  } else {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i)
      out.push_back(PySequence_Fast_GET_ITEM(container, i));
  }
  return true;
}

// Prints what it is, and no address.
bool is_of_torch(PyObject* object) {
  return std::strncmp(Py_TYPE(object)->tp_name, "torch.", 6) == 0 &&
         Py_TYPE(object)->tp_repr != PyBaseObject_Type.tp_repr &&
         (THPDevice_Check(object) || guards::content_of(object) != guards::Content::kUnknown);
}

}  // namespace

LibraryFunction classify_library_function(PyObject* function) {
  static PyObject* const is_compiling = find("torch.compiler", {"is_compiling"});
  static PyObject* const tensor_hash = find("torch", {"Tensor", "__hash__"});
  static PyObject* const wrapped = find("torch.utils.checkpoint", {"checkpoint"});
  static PyObject* const checkpoint = find("torch.utils.checkpoint", {"checkpoint", "__wrapped__"});
  if (function == is_compiling) return LibraryFunction::kIsCompiling;
  if (function == tensor_hash) return LibraryFunction::kTensorHash;
  if (checkpoint && function == checkpoint) return LibraryFunction::kCheckpoint;
  static PyObject* const pattern = find("re", {"_compile"});
  if (function == pattern) return LibraryFunction::kPattern;
  static PyObject* const dispatch = inner_code(find("functools", {"singledispatch"}), "dispatch");
  if (dispatch && code_of(function) == dispatch) return LibraryFunction::kDispatch;
  if (checkpoint && code_of(function) == code_of(wrapped)) return LibraryFunction::kWithoutDynamo;
  return LibraryFunction::kNone;
}

bool only_compares_addresses(PyFrameObject* frame) {
  static PyObject* const tensor_hash = find("torch", {"Tensor", "__hash__", "__code__"});
  static PyObject* const copies = find("copy", {"deepcopy", "__code__", "co_filename"});
  if (!frame) return false;
  const Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  return code.get() == tensor_hash ||
         reinterpret_cast<PyCodeObject*>(code.get())->co_filename == copies;
}

// Both walk over data of the program, which may be deep, and lead back to itself.
bool hashes_the_same(PyObject* object) {
  std::vector<PyObject*> pending{object};
  std::unordered_set<PyObject*> seen;
  while (!pending.empty()) {
    object = pending.back();
    pending.pop_back();
    if (is_primitive(object) || is_fixed(object)) continue;
    if (PyTuple_Check(object)) {
      if (seen.insert(object).second && !list_content(object, pending)) return false;
    } else if (guards::is_tensor(object) ||
               (guards::content_of(object) != guards::Content::kValue &&
                !is_in_python(Py_TYPE(object), "__hash__"))) {
      return false;
    }
  }
  return true;
}

bool prints_the_same(PyObject* object) {
  std::vector<PyObject*> pending{object};
  std::unordered_set<PyObject*> seen;
  while (!pending.empty()) {
    object = pending.back();
    pending.pop_back();
    if (is_primitive(object) || is_fixed(object) || guards::is_tensor(object)) continue;
    PyTypeObject* type = Py_TYPE(object);
    if (PyTuple_Check(object) || PyList_CheckExact(object) || PyDict_CheckExact(object) ||
        PyAnySet_Check(object)) {
      if (seen.insert(object).second && !list_content(object, pending)) return false;
    } else if (guards::content_of(object) != guards::Content::kValue && !is_of_torch(object) &&
               !PyRange_Check(object) && !PyExceptionInstance_Check(object) &&
               !is_in_python(type, "__repr__") && !is_in_python(type, "__str__")) {
      return false;
    }
  }
  return true;
}

}  // namespace backplane::capture
