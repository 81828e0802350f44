// Calls of objects that are functions in all but their class: what the modules functools, operator
// and numpy give.
#include <array>
#include <cmath>
#include <string>
#include <string_view>

#include "core/cpython/frame/hook.h"
#include "core/torch/guards/content.h"
#include "core/torch/interpret/interpreter.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

// Functions of NumPy that are no ufunc: of numbers they give a number.
constexpr std::array<std::string_view, 17> kNumpyFunctions{
    "prod",   "sum", "mean", "max",  "min",   "amax",   "amin", "argmax", "argmin",
    "median", "std", "var",  "clip", "round", "around", "size", "ndim"};

// Borrowed; null where nobody has imported NumPy, or it has no such thing.
PyObject* numpy_function(const char* name) {
  PyObject* const numpy = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy");
  return numpy && PyModule_Check(numpy) ? PyDict_GetItemString(PyModule_GetDict(numpy), name)
                                        : nullptr;
}

bool is_numpy_callable(PyObject* callable) {
  static PyTypeObject *ufunc = nullptr, *dispatcher = nullptr;
  if (!ufunc)
    if (PyObject* const found = numpy_function("ufunc"); found && PyType_Check(found))
      ufunc = reinterpret_cast<PyTypeObject*>(Py_NewRef(found));
  if (!ufunc) return false;
  if (Py_TYPE(callable) == ufunc) return true;
  if (!dispatcher)
    if (PyObject* const prod = numpy_function("prod"); prod && !PyFunction_Check(prod))
      dispatcher =
          reinterpret_cast<PyTypeObject*>(Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(prod))));
  if (!dispatcher || Py_TYPE(callable) != dispatcher) return false;
  for (const std::string_view name : kNumpyFunctions)
    if (numpy_function(std::string(name).c_str()) == callable) return true;
  return false;
}

// A number of Python's or NumPy's.
bool is_number(PyObject* object) {
  if (PyLong_CheckExact(object) || PyFloat_CheckExact(object) || PyBool_Check(object)) return true;
  return std::string_view(Py_TYPE(object)->tp_name).starts_with("numpy.") &&
         guards::content_of(object) == guards::Content::kValue;
}

bool holds_numbers(PyObject* object) {
  if (!PyTuple_Check(object) && !PyList_CheckExact(object)) return is_number(object);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
    if (!is_number(PySequence_Fast_GET_ITEM(object, i))) return false;
  return true;
}

// They live as long as the process.
struct GetterTypes {
  PyTypeObject *item, *attribute, *method;
};
const GetterTypes& getter_types() {
  static const GetterTypes types{find_type("_operator", "itemgetter"),
                                 find_type("_operator", "attrgetter"),
                                 find_type("_operator", "methodcaller")};
  return types;
}

bool is_finite(PyObject* number) {
  const double value = PyFloat_AsDouble(number);
  if (!PyErr_Occurred()) return std::isfinite(value);
  PyErr_Clear();
  return false;
}

}  // namespace

PyTypeObject* partial_type() {
  static PyTypeObject* const type = find_type("functools", "partial");
  return type;
}

Interpreter::PartialParts Interpreter::read_partial(PyObject* partial) {
  static PyObject* const names[3] = {PyUnicode_InternFromString("func"),
                                     PyUnicode_InternFromString("args"),
                                     PyUnicode_InternFromString("keywords")};
  PartialParts parts;
  parts.function = Ref::steal(instance_attribute(partial, names[0]));
  if (parts.function) parts.first = Ref::steal(instance_attribute(partial, names[1]));
  if (parts.first) parts.keywords = Ref::steal(instance_attribute(partial, names[2]));
  if (parts.keywords &&
      (!world_.expose_items(parts.first.get()) || !world_.expose_items(parts.keywords.get())))
    parts.keywords = {};
  return parts;
}

PyObject* Interpreter::call_partial(PyObject* partial, PyObject* const* arguments,
                                    std::size_t count, PyObject* keyword_names) {
  const std::size_t total = count + keyword_count(keyword_names);
  const auto [function, first, keywords] = read_partial(partial);
  if (!keywords) return nullptr;
  std::vector<Ref> held;
  std::vector<PyObject*> all;
  const auto add = [&](PyObject* value) {
    held.push_back(Ref::steal(world_.admit(Py_NewRef(value), "partial", 2)));
    if (held.back()) all.push_back(held.back().get());
    return static_cast<bool>(held.back());
  };
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(first.get()); ++i)
    if (!add(PyTuple_GET_ITEM(first.get(), i))) return nullptr;
  all.insert(all.end(), arguments, arguments + count);
  const std::size_t positional = all.size();
  // As in a dict: keywords of the call come in the place of those of the partial.
  const Ref merged = Ref::steal(PyDict_Copy(keywords.get()));
  for (std::size_t i = count; merged && i < total; ++i)
    if (PyDict_SetItem(merged.get(),
                       PyTuple_GET_ITEM(keyword_names, static_cast<Py_ssize_t>(i - count)),
                       arguments[i]) != 0)
      return nullptr;
  if (!merged) return nullptr;
  const Ref names_of_all = Ref::steal(PyTuple_New(PyDict_GET_SIZE(merged.get())));
  Py_ssize_t position = 0, n = 0;
  PyObject *key, *value;
  while (PyDict_Next(merged.get(), &position, &key, &value)) {
    PyTuple_SET_ITEM(names_of_all.get(), n++, Py_NewRef(key));
    if (!add(value)) return nullptr;
  }
  return call(function.get(), all.data(), positional, n ? names_of_all.get() : nullptr);
}

// Nobody sees how NumPy computes, but for what it warns of, which no finite number comes with.
PyObject* Interpreter::call_numpy(PyObject* callable, PyObject* const* arguments, std::size_t count,
                                  PyObject* keyword_names) {
  for (std::size_t i = 0; i < count + keyword_count(keyword_names); ++i) {
    if (!world_.expose(arguments[i])) return nullptr;
    if (!holds_numbers(arguments[i]) && (i < count || arguments[i] != Py_None))
      return world_.stop("the program calls a function of NumPy on a " +
                         std::string(Py_TYPE(arguments[i])->tp_name));
  }
  if (const SourceId source = world_.source_of(callable); source != kNoSource)
    world_.guards().guard_identity(source, callable);
  Ref result = Ref::steal(cpython::call_unhooked(callable, arguments, count, keyword_names));
  if (!result) return nullptr;
  if (!is_number(result.get()) || !is_finite(result.get()))
    return world_.stop("the program calls a function of NumPy that gives a " +
                       std::string(Py_TYPE(result.get())->tp_name));
  return world_.admit(result.release(), "NumPy");
}

// `getter`: of operator.itemgetter, attrgetter or methodcaller, which never change.
PyObject* Interpreter::call_getter(PyObject* getter, PyObject* const* arguments, std::size_t count,
                                   PyObject* keyword_names) {
  if (count != 1 || keyword_count(keyword_names) != 0)
    return world_.stop("the program calls a " + std::string(Py_TYPE(getter)->tp_name) +
                       " in an unusual way");
  const SourceId source = world_.source_of(getter);
  if (source != kNoSource) world_.guards().guard_identity(source, getter);
  const Ref reduced = Ref::steal(PyObject_CallMethod(getter, "__reduce__", nullptr));
  if (!reduced || !PyTuple_Check(reduced.get()) || PyTuple_GET_SIZE(reduced.get()) < 2 ||
      PyTuple_GET_ITEM(reduced.get(), 0) != reinterpret_cast<PyObject*>(Py_TYPE(getter))) {
    PyErr_Clear();
    return world_.stop("the program calls a " + std::string(Py_TYPE(getter)->tp_name) +
                       " with keywords");
  }
  PyObject* const parts = PyTuple_GET_ITEM(reduced.get(), 1);
  std::vector<Ref> held;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); ++i) {
    PyObject* const part = PyTuple_GET_ITEM(parts, i);
    held.push_back(source == kNoSource ? Ref::borrow(part)
                                       : Ref::steal(world_.read_constant(part)));
    if (!held.back()) return nullptr;
  }
  const GetterTypes& types = getter_types();
  if (Py_TYPE(getter) == types.method) {
    const Ref method = Ref::steal(attribute(arguments[0], held[0].get()));
    std::vector<PyObject*> rest;
    for (std::size_t i = 1; i < held.size(); ++i) rest.push_back(held[i].get());
    return method ? call(method.get(), rest.data(), rest.size(), nullptr) : nullptr;
  }
  const auto get = [&](PyObject* part) -> PyObject* {
    if (Py_TYPE(getter) == types.item) return item(arguments[0], part);
    Ref found = Ref::borrow(arguments[0]);
    std::string_view names = text_of(part);
    while (found && !names.empty()) {
      const std::string_view name = names.substr(0, names.find('.'));
      names.remove_prefix(std::min(names.size(), name.size() + 1));
      PyObject* text =
          PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size()));
      PyUnicode_InternInPlace(&text);
      const Ref owned = Ref::steal(text);
      found = Ref::steal(attribute(found.get(), owned.get()));
    }
    return found.release();
  };
  if (held.size() == 1) return get(held[0].get());
  Ref all = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(held.size())));
  for (std::size_t i = 0; all && i < held.size(); ++i) {
    PyObject* const one = get(held[i].get());
    if (!one) return nullptr;
    PyTuple_SET_ITEM(all.get(), static_cast<Py_ssize_t>(i), one);
  }
  if (all) world_.own(all.get());
  return all.release();
}

PyObject* Interpreter::call_object(PyObject* callable, PyObject* const* arguments,
                                   std::size_t count, PyObject* keyword_names, bool& out_known) {
  const GetterTypes& getters = getter_types();
  const PyTypeObject* const type = Py_TYPE(callable);
  out_known = true;
  if (type == getters.item || type == getters.attribute || type == getters.method)
    return call_getter(callable, arguments, count, keyword_names);
  if (type == partial_type()) return call_partial(callable, arguments, count, keyword_names);
  if (is_numpy_callable(callable)) return call_numpy(callable, arguments, count, keyword_names);
  out_known = false;
  return nullptr;
}

}  // namespace backplane::capture
