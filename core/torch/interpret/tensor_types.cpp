// What PyTorch's older functions make of a tensor's dispatch key: a tensor that is being recorded
// has another one than the tensor that it stands for.
#include <string>
#include <string_view>

#include "core/torch/guards/content.h"
#include "core/torch/interpret/interpreter.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

// torch.FloatTensor and its like are instances of it.
bool is_tensor_type(PyObject* object) {
  static PyTypeObject* const type = [] {
    PyTypeObject* const one = find_type("torch", "FloatTensor");
    return one ? Py_TYPE(one) : nullptr;
  }();
  return type && PyObject_TypeCheck(object, type);
}

bool names_tensor_type(PyObject* classes) {
  if (!PyTuple_Check(classes)) return is_tensor_type(classes);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); ++i)
    if (names_tensor_type(PyTuple_GET_ITEM(classes, i))) return true;
  return false;
}

PyObject* factory(const char* name) {
  const Ref torch = Ref::steal(PyImport_ImportModule("torch._C"));
  const Ref functions =
      torch ? Ref::steal(PyObject_GetAttrString(torch.get(), "_VariableFunctions")) : Ref();
  return functions ? PyObject_GetAttrString(functions.get(), name) : nullptr;
}

bool is_size(PyObject* const* arguments, std::size_t count) {
  static PyTypeObject* const size = find_type("torch", "Size");
  if (count == 1 && Py_TYPE(arguments[0]) == size) return true;
  for (std::size_t i = 0; i < count; ++i)
    if (!PyLong_CheckExact(arguments[i])) return false;
  return true;
}

}  // namespace

int is_instance_of(PyObject* object, PyObject* classes) {
  if (!guards::is_tensor(object) || !names_tensor_type(classes))
    return PyObject_IsInstance(object, classes);
  if (PyTuple_Check(classes)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); ++i)
      if (const int found = is_instance_of(object, PyTuple_GET_ITEM(classes, i))) return found;
    return 0;
  }
  const Ref own = Ref::steal(PyObject_CallMethod(object, "type", nullptr));
  const Ref module = Ref::steal(PyObject_GetAttrString(classes, "__module__"));
  const Ref name = Ref::steal(PyObject_GetAttrString(classes, "__name__"));
  if (!own || !module || !name) return -1;
  const Ref full = Ref::steal(PyUnicode_FromFormat("%U.%U", module.get(), name.get()));
  return full ? PyObject_RichCompareBool(own.get(), full.get(), Py_EQ) : -1;
}

PyObject* Interpreter::call_new(PyObject* tensor, std::string_view method,
                                PyObject* const* arguments, std::size_t count,
                                PyObject* keyword_names) {
  const std::size_t named =
      keyword_names ? static_cast<std::size_t>(PyTuple_GET_SIZE(keyword_names)) : 0;
  const bool is_old = method == "new";
  if (is_old && named == 0 && is_size(arguments, count)) {
    static PyObject* const name = PyUnicode_InternFromString("new_empty");
    const Ref empty = Ref::steal(PyObject_GetAttr(tensor, name));
    const Ref none = Ref::steal(PyLong_FromLong(0));
    PyObject* const no_elements = none.get();
    if (!empty) return nullptr;
    return count == 0 ? call_operator(empty.get(), &no_elements, 1, nullptr)
                      : call_operator(empty.get(), arguments, count, nullptr);
  }
  // Whoever gives a tensor is warned.
  const bool is_of_tensor = count + named == 0 || guards::is_tensor(arguments[0]);
  const bool is_known = is_old ? count == 1 && named == 0 &&
                                     (PyList_Check(arguments[0]) || PyTuple_Check(arguments[0]))
                               : count <= 1;
  if (is_of_tensor || !is_known)
    return world_.stop("the program calls " + std::string(method) +
                       " of a tensor in an unusual way");
  std::vector<PyObject*> given(arguments, arguments + count + named);
  std::vector<Ref> held;
  const Ref names = Ref::steal(PyList_New(0));
  for (std::size_t i = 0; i < named; ++i)
    PyList_Append(names.get(), PyTuple_GET_ITEM(keyword_names, static_cast<Py_ssize_t>(i)));
  for (const char* option : {"dtype", "device"}) {
    const Ref name = Ref::steal(PyUnicode_InternFromString(option));
    held.push_back(Ref::steal(PyObject_GetAttr(tensor, name.get())));
    if (!held.back()) return nullptr;
    PyObject** stands = nullptr;
    for (std::size_t i = 0; i < named; ++i)
      if (PyUnicode_Compare(PyTuple_GET_ITEM(keyword_names, static_cast<Py_ssize_t>(i)),
                            name.get()) == 0)
        stands = &given[count + i];
    if (!stands) {
      PyList_Append(names.get(), name.get());
      given.push_back(held.back().get());
    } else if (*stands == Py_None) {
      *stands = held.back().get();
    }
  }
  static PyObject* const make = factory("tensor");
  const Ref keywords = Ref::steal(PyList_AsTuple(names.get()));
  return make && keywords ? call_operator(make, given.data(), count, keywords.get()) : nullptr;
}

}  // namespace backplane::capture
