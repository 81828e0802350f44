// Calls by what is called: Python functions are interpreted, classes make instances.
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string_view>
#include <utility>

#include "core/torch/guards/content.h"
#include "core/torch/interpret/interpreter.h"
#include "core/torch/interpret/library_functions.h"
#include "core/torch/world/c_functions.h"

namespace backplane::capture {

PyTypeObject* find_type(const char* module_name, const char* name) {
  const Ref module = Ref::steal(PyImport_ImportModule(module_name));
  return reinterpret_cast<PyTypeObject*>(module ? PyObject_GetAttrString(module.get(), name)
                                                : nullptr);
}

namespace {

using cpython::Ref;

PyTypeObject* g_wrapper = nullptr;
PyObject* (*g_unwrap)(PyObject*) = nullptr;

// torch.ops.<library>.<name>, with or without its overload.
bool is_operator_object(PyTypeObject* type) {
  static PyTypeObject* const overload = find_type("torch._ops", "OpOverload");
  static PyTypeObject* const packet = find_type("torch._ops", "OpOverloadPacket");
  return type == overload || type == packet;
}

// Whether its kernels are the program's own code, which may look at what the program has written.
bool is_of_program(PyObject* operator_object) {
  for (const char* attribute : {"_name", "_qualified_op_name"}) {
    const Ref name = Ref::steal(PyObject_GetAttrString(operator_object, attribute));
    const char* text = name && PyUnicode_Check(name.get()) ? PyUnicode_AsUTF8(name.get()) : nullptr;
    PyErr_Clear();
    if (!text) continue;
    const std::string_view view = text;
    return !view.starts_with("aten::") && !view.starts_with("prim");
  }
  return true;
}

bool is_c_callable(PyObject* callable) {
  PyTypeObject* type = Py_TYPE(callable);
  return PyCFunction_Check(callable) || type == &PyMethodDescr_Type ||
         type == &PyWrapperDescr_Type || type == &_PyMethodWrapper_Type ||
         type == &PyClassMethodDescr_Type;
}

}  // namespace

void look_through(PyTypeObject* type, PyObject* (*unwrap)(PyObject*)) {
  g_wrapper = type;
  g_unwrap = unwrap;
}

bool Interpreter::expose_arguments(PyObject* const* arguments, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (!world_.expose_callable(arguments[i]) || !world_.expose(arguments[i])) return false;
  return true;
}

bool Interpreter::expose_for(CUse use, PyObject* self, PyObject* const* arguments,
                             std::size_t count) {
  switch (use) {
    case CUse::kReads:
      return (!self || world_.expose(self)) && expose_arguments(arguments, count);
    case CUse::kHandsOn:
      for (std::size_t i = 0; i < count; ++i)
        if (!world_.expose_items(arguments[i])) return false;
      break;
    case CUse::kKeepsByKey:
      if (count > 0 && !world_.expose(arguments[0])) return false;
      break;
    case CUse::kKeeps:
      break;
  }
  return !self || world_.expose_items(self);
}

PyObject* Interpreter::call(PyObject* callable, PyObject* const* arguments, std::size_t count,
                            PyObject* keyword_names) {
  if (world_.stopped()) return world_.stop("");
  if (world_.is_too_deep()) return world_.stop("the program's calls lie too deep for the C stack");
  const std::size_t total = count + keyword_count(keyword_names);
  if (PyFunction_Check(callable)) {
    if (!world_.is_own(callable) && !world_.is_outside(callable))
      return world_.stop("the program calls a function whose origin is unknown");
    switch (classify_library_function(callable)) {
      case LibraryFunction::kNone:
        break;
      case LibraryFunction::kIsCompiling:
        return Py_NewRef(Py_True);
      case LibraryFunction::kTensorHash:
        return world_.stop("the program asks for the address of a tensor");
      case LibraryFunction::kWithoutDynamo:
        return call_wrapped(callable, arguments, count, keyword_names);
      case LibraryFunction::kCheckpoint:
        return call_checkpointed(arguments, count, keyword_names);
      case LibraryFunction::kPattern:
        return call_re_compile(callable, arguments, count, keyword_names);
      case LibraryFunction::kDispatch:
        return call_dispatch(callable, arguments, count, keyword_names);
    }
    const TakerScope scope(*this, Taker::kInterpreter);
    PyObject* result = PyObject_Vectorcall(callable, arguments, count, keyword_names);
    if (!world_.stopped()) return result;
    Py_XDECREF(result);
    return world_.stop("");
  }
  const auto with_first = [&](PyObject* function, PyObject* first) {
    std::vector<PyObject*> all{first};
    all.insert(all.end(), arguments, arguments + total);
    return call(function, all.data(), count + 1, keyword_names);
  };
  if (PyMethod_Check(callable)) {
    if (!world_.is_outside(callable))
      return with_first(PyMethod_GET_FUNCTION(callable), PyMethod_GET_SELF(callable));
    guards::Sources& sources = world_.guards().sources();
    const SourceId source = world_.source_of(callable);
    const Ref self = Ref::steal(world_.read(PyMethod_GET_SELF(callable),
                                            sources.add(SourceKind::kMethodSelf, source, nullptr)));
    const Ref function =
        Ref::steal(world_.read(PyMethod_GET_FUNCTION(callable),
                               sources.add(SourceKind::kMethodFunction, source, nullptr)));
    return self && function ? with_first(function.get(), self.get()) : nullptr;
  }
  if (PyType_Check(callable)) return call_type(callable, arguments, count, keyword_names);
  if (is_c_callable(callable)) return call_c_function(callable, arguments, count, keyword_names);
  PyTypeObject* type = Py_TYPE(callable);
  if (type == &_PyWeakref_RefType && count == 0 && world_.is_outside(callable)) {
    PyObject* referent = PyWeakref_GET_OBJECT(callable);
    Ref found = Ref::steal(world_.read(
        referent,
        world_.guards().sources().add(SourceKind::kReferent, world_.source_of(callable), nullptr)));
    if (found && world_.has_let_go(found.get()))
      return world_.stop("the program asks for an object that it has let go of");
    return found.release();
  }
  if (g_wrapper && type == g_wrapper) {
    const Ref inner = Ref::steal(world_.read_constant(g_unwrap(callable)));
    return inner ? call(inner.get(), arguments, count, keyword_names) : nullptr;
  }
  if (is_operator_object(type)) {
    world_.guards().guard_identity(world_.source_of(callable), callable);
    if (!world_.effects().all().empty() && is_of_program(callable))
      return world_.stop(
          "the program calls an operator of its own after it has changed what is outside");
    const Ref function = Ref::steal(PyObject_GetAttrString(callable, "_op"));
    // Kernels in Python are the library's: what they record is what the operator does.
    const bool outer = std::exchange(in_operator_, true);
    const auto leave = c10::make_scope_exit([&] { in_operator_ = outer; });
    return function ? call_operator(function.get(), arguments, count, keyword_names) : nullptr;
  }
  if (guards::is_cached_function(callable))
    return call_cached(callable, arguments, count, keyword_names);
  bool known = false;
  if (PyObject* result = call_object(callable, arguments, count, keyword_names, known); known)
    return result;
  static PyObject* const call_name = PyUnicode_InternFromString("__call__");
  PyObject* method = _PyType_Lookup(type, call_name);
  if (method && PyFunction_Check(method) && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    world_.guards().guard_type_attribute(type, call_name, method);
    const Ref known = Ref::steal(world_.read_constant(method));
    return known ? with_first(known.get(), callable) : nullptr;
  }
  return world_.stop(std::string("the program calls an object of class ") + type->tp_name);
}

PyObject* Interpreter::call_type(PyObject* callable, PyObject* const* arguments, std::size_t count,
                                 PyObject* keyword_names) {
  auto* type = reinterpret_cast<PyTypeObject*>(callable);
  const std::size_t keywords = keyword_count(keyword_names);
  if (type == &PyType_Type && count == 1 && keywords == 0)
    return world_.read_constant(reinterpret_cast<PyObject*>(Py_TYPE(arguments[0])));
  if (type == &PyBool_Type && count == 1 && keywords == 0) {
    const int is_true = truth(arguments[0]);
    return is_true < 0 ? nullptr : PyBool_FromLong(is_true);
  }
  PyTypeObject* meta = Py_TYPE(callable);
  if (meta != &PyType_Type) {
    static PyObject* const call_name = PyUnicode_InternFromString("__call__");
    PyObject* method = _PyType_Lookup(meta, call_name);
    world_.guards().guard_type_attribute(meta, call_name, method);
    if (method && PyFunction_Check(method)) {
      const Ref known = Ref::steal(world_.read_constant(method));
      std::vector<PyObject*> all{callable};
      all.insert(all.end(), arguments, arguments + count + keywords);
      return known ? call(known.get(), all.data(), count + 1, keyword_names) : nullptr;
    }
  }
  return make_instance(type, arguments, count, keyword_names);
}

PyObject* Interpreter::make_instance(PyTypeObject* type, PyObject* const* arguments,
                                     std::size_t count, PyObject* keyword_names) {
  PyObject* callable = reinterpret_cast<PyObject*>(type);
  const std::size_t keywords = keyword_count(keyword_names);
  if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(THPVariableClass)))
    return world_.stop(std::string("the program makes a ") + type->tp_name);
  if (!is_constructible(type) || type == &PyType_Type)
    return world_.stop(std::string("the program makes an instance of ") + type->tp_name);
  if (type == &PyUnicode_Type && count == 1) {
    if (!prints_the_same(arguments[0]))
      return world_.stop(std::string("the text of a ") + Py_TYPE(arguments[0])->tp_name +
                         " may name its address");
    if (PyType_Check(arguments[0])) world_.guard_name(arguments[0]);
  }
  // It reads the cell of the frame's class and the frame's first argument as they are.
  if (type == &PySuper_Type && count == 0 && world_.effects().has(EffectKind::kCell))
    return world_.stop("the program calls super() after it has changed variables of functions");
  const CUse use = use_of_class(type);
  if (!expose_for(use, nullptr, arguments, count + keywords)) return nullptr;
  if (type->tp_iternext)
    for (std::size_t i = 0; i < count + keywords; ++i) world_.note_iterated(arguments[i]);
  // One partial of another is made of the parts of both.
  if (type == partial_type() && count > 0 && Py_TYPE(arguments[0]) == type &&
      !read_partial(arguments[0]).keywords)
    return nullptr;
  const TakerScope scope(*this, use == CUse::kReads ? Taker::kReader : Taker::kInterpreter);
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE)
    return world_.admit(PyObject_Vectorcall(callable, arguments, count, keyword_names),
                        type->tp_name);
  // As type.__call__, which would hand __init__ an object that is not known yet.
  static PyObject* const names[2] = {PyUnicode_InternFromString("__new__"),
                                     PyUnicode_InternFromString("__init__")};
  for (PyObject* name : names)
    world_.guards().guard_type_attribute(type, name, _PyType_Lookup(type, name));
  if (!world_.ends_silently(type)) return nullptr;
  const Ref positional = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; i < count; ++i)
    PyTuple_SET_ITEM(positional.get(), static_cast<Py_ssize_t>(i), Py_NewRef(arguments[i]));
  Ref named;
  if (keywords) {
    named = Ref::steal(PyDict_New());
    for (std::size_t i = 0; i < keywords; ++i)
      PyDict_SetItem(named.get(), PyTuple_GET_ITEM(keyword_names, static_cast<Py_ssize_t>(i)),
                     arguments[count + i]);
  }
  if (!type->tp_new) return world_.stop(std::string(type->tp_name) + " cannot be made");
  Ref made =
      Ref::steal(world_.admit(type->tp_new(type, positional.get(), named.get()), type->tp_name));
  if (!made) return nullptr;
  if (PyObject_TypeCheck(made.get(), type) && Py_TYPE(made.get())->tp_init &&
      Py_TYPE(made.get())->tp_init(made.get(), positional.get(), named.get()) < 0)
    return nullptr;
  return world_.stopped() ? world_.stop("") : made.release();
}

}  // namespace backplane::capture
