// Calls of functions in C, which run where that is known to be harmless.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/torch/guards/content.h"
#include "core/torch/interpret/interpreter.h"
#include "core/torch/interpret/library_functions.h"
#include "core/torch/world/c_functions.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

// dict.pop on an OrderedDict: what its class keeps beside the items no longer fits them.
bool passes_over(PyObject* self, PyObject* method) {
  if (!PyDict_Check(self) ||
      (Py_TYPE(method) != &PyMethodDescr_Type && Py_TYPE(method) != &PyWrapperDescr_Type))
    return false;
  return _PyType_Lookup(guards::base_in_c(Py_TYPE(self)), PyDescr_NAME(method)) != method;
}

bool holds_only_primitives(PyObject* object) {
  if (!PyFrozenSet_CheckExact(object)) return false;
  Py_ssize_t position = 0;
  PyObject* item = nullptr;
  Py_hash_t hash = 0;
  while (_PySet_NextEntry(object, &position, &item, &hash))
    if (!is_primitive(item)) return false;
  return true;
}

// The function that numbers what is registered with abstract classes.
PyObject* find_cache_token() {
  const Ref module = Ref::steal(PyImport_ImportModule("_abc"));
  PyObject* found = module ? PyObject_GetAttrString(module.get(), "get_cache_token") : nullptr;
  if (!found) PyErr_Clear();
  return found;
}

// "{0.name}" or "{0[key]}".
bool formats_attributes(PyObject* text) {
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text, &size);
  if (!utf8) {
    PyErr_Clear();
    return true;
  }
  bool in_name = false;
  for (const char c : std::string_view(utf8, static_cast<std::size_t>(size))) {
    if (c == '{')
      in_name = true;
    else if (c == '}' || c == ':' || c == '!')
      in_name = false;
    else if (in_name && (c == '.' || c == '['))
      return true;
  }
  return false;
}

// str, repr, ascii, as the key to sort by.
bool prints(PyObject* callable) {
  if (callable == reinterpret_cast<PyObject*>(&PyUnicode_Type)) return true;
  const std::string_view name = PyCFunction_Check(callable) ? c_name(callable) : "";
  return name == "repr" || name == "ascii";
}

bool sorts_by_text(std::string_view name, PyObject* const* arguments, std::size_t count) {
  return (name == "sorted" || name == "min" || name == "max" || name == "sort") &&
         std::any_of(arguments, arguments + count, prints);
}

}  // namespace

// The capture runs in a context of its own, so that what a variable is set to ends with it.
PyObject* Interpreter::call_context_variable(PyObject* callable, PyObject* variable,
                                             PyObject* const* arguments, std::size_t count) {
  const std::string_view name = c_name(callable);
  if (name == "get") {
    if (variable_sets_[variable] == 0) {
      // Nothing is set where the call's own default would be what it gives.
      PyObject* const own_default = count > 0 ? Py_Ellipsis : nullptr;
      PyObject* value = nullptr;
      if (PyContextVar_Get(variable, own_default, &value) != 0) return nullptr;
      const Ref held = Ref::steal(value);
      if (!value || value == own_default)
        return world_.stop("the program reads a context variable that has no value");
      const Ref known = Ref::steal(world_.read_constant(variable));
      return world_.read(value, world_.guards().sources().add(SourceKind::kContextValue,
                                                              world_.source_of(variable), nullptr));
    }
  } else if (name == "set") {
    ++variable_sets_[variable];
  } else if (name == "reset") {
    --variable_sets_[variable];
  } else {
    return world_.stop("the program calls a method of a context variable");
  }
  return world_.admit(PyObject_Vectorcall(callable, arguments, count, nullptr),
                      "a context variable");
}

PyObject* Interpreter::call_operator(PyObject* callable, PyObject* const* arguments,
                                     std::size_t count, PyObject* keyword_names) {
  const std::size_t total = count + keyword_count(keyword_names);
  // A graph has no leaves of its own for a later backward.
  for (std::size_t i = count; i < total; ++i)
    if (arguments[i] == Py_True &&
        PyUnicode_CompareWithASCIIString(
            PyTuple_GET_ITEM(keyword_names, static_cast<Py_ssize_t>(i - count)), "requires_grad") ==
            0)
      return world_.stop(std::string("the program makes a leaf with ") + c_name(callable));
  std::vector<Ref> held;
  std::vector<PyObject*> own(arguments, arguments + total);
  for (PyObject*& argument : own) {
    if (PyObject* list = world_.seen_list(argument)) argument = list;
    if (world_.holds_outside_sequence(argument)) {
      held.push_back(Ref::steal(world_.copy_sequence(argument)));
      if (!held.back()) return nullptr;
      argument = held.back().get();
      continue;
    }
    if (!world_.expose(argument)) return nullptr;
    // What expose() covers is how Python sees an object; an operator may look at more.
    const guards::Content content = guards::content_of(argument);
    if (world_.is_outside(argument) && !is_fixed(argument) && !PyTuple_Check(argument) &&
        !PySlice_Check(argument) && content != guards::Content::kValue &&
        content != guards::Content::kIdentity)
      return world_.stop(std::string("the program gives a ") + Py_TYPE(argument)->tp_name +
                         " from outside to " + c_name(callable));
  }
  return world_.admit(PyObject_Vectorcall(callable, own.data(), count, keyword_names),
                      c_name(callable));
}

PyObject* Interpreter::call_c_function(PyObject* callable, PyObject* const* arguments,
                                       std::size_t count, PyObject* keyword_names) {
  PyObject* self = nullptr;
  const CFunctionKind kind = classify(callable, self);
  const std::size_t total = count + keyword_count(keyword_names);
  const bool is_bound = self != nullptr;
  if (!self && count > 0 && !PyCFunction_Check(callable)) self = arguments[0];
  PyObject* variable = self;
  if (PyCFunction_Check(callable) && !variable) variable = PyCFunction_GET_SELF(callable);
  if (variable && PyContextVar_CheckExact(variable) && !keyword_names &&
      PyCFunction_Check(callable))
    return call_context_variable(callable, variable, arguments, count);
  if (is_bound && world_.is_outside(callable) && !is_fixed(callable)) {
    if (!is_primitive(self) && !is_fixed(self) && !holds_only_primitives(self))
      return world_.stop(std::string("the program calls the method ") + c_name(callable) +
                         ", bound outside");
    world_.guards().guard_identity(world_.source_of(callable), callable);
  }
  if (self && is_bound && kind == CFunctionKind::kWriter && world_.defers_effects() &&
      PyList_CheckExact(self) && world_.is_outside(self) && count == 1 && !keyword_names &&
      std::strcmp(c_name(callable), "append") == 0)
    return append(self, arguments[0]) ? Py_NewRef(Py_None) : nullptr;
  if (self && is_bound && PyList_CheckExact(self) && world_.is_outside(self) &&
      ((kind == CFunctionKind::kWriter && world_.defers_effects()) || world_.seen_list(self))) {
    PyObject* list = world_.changed_list(self);
    const Ref method = list ? Ref::steal(PyObject_GetAttrString(list, c_name(callable))) : Ref();
    return method ? call_c_function(method.get(), arguments, count, keyword_names) : nullptr;
  }
  switch (kind) {
    case CFunctionKind::kUnknown:
      return world_.stop(std::string("the program calls ") + c_name(callable) +
                         ", whose effects are unknown");
    case CFunctionKind::kOperator:
      if (PyObject* of = self        ? self
                         : total > 0 ? arguments[0]
                                     : nullptr;
          of && guards::is_tensor(of) && !knows_fact(c_name(callable), of))
        return world_.stop(std::string("the program asks for ") + c_name(callable) +
                           " of a tensor");
      if (const std::string_view name = c_name(callable);
          is_bound && guards::is_tensor(self) && (name == "new" || name == "new_tensor"))
        return call_new(self, name, arguments, count, keyword_names);
      return call_operator(callable, arguments, count, keyword_names);
    case CFunctionKind::kGetattr:
    case CFunctionKind::kHasattr:
    case CFunctionKind::kSetattr:
    case CFunctionKind::kDelattr:
    case CFunctionKind::kNext:
    case CFunctionKind::kIter:
    case CFunctionKind::kLen:
    case CFunctionKind::kId:
    case CFunctionKind::kHash:
    case CFunctionKind::kVars:
    case CFunctionKind::kLocals:
      if (keyword_names && PyTuple_GET_SIZE(keyword_names) != 0) break;
      return call_special(static_cast<int>(kind), arguments, count);
    case CFunctionKind::kLock:
      return call_lock(self, c_name(callable), total != 0);
    case CFunctionKind::kStore: {
      const std::size_t first = is_bound ? 0 : 1;
      if (!self || keyword_names || count < first + 1 || count > first + 2) break;
      return store_attribute(self, arguments[first],
                             count > first + 1 ? arguments[first + 1] : nullptr)
                 ? Py_NewRef(Py_None)
                 : nullptr;
    }
    case CFunctionKind::kMake: {
      const std::size_t first = is_bound ? 0 : 1;
      if (!self || !PyType_Check(self)) break;
      return make_instance(reinterpret_cast<PyTypeObject*>(self), arguments + first, count - first,
                           keyword_names);
    }
    case CFunctionKind::kFillsFirst:
      if (count > 0 && !world_.is_own(arguments[0]))
        return world_.stop(std::string("the program changes a ") + Py_TYPE(arguments[0])->tp_name +
                           " from outside");
      break;
    case CFunctionKind::kFind: {
      const std::size_t first = is_bound ? 0 : 1;
      if (!self || keyword_names || count != first + 1 || !PyUnicode_Check(arguments[first])) break;
      return instance_attribute(self, arguments[first]);
    }
    case CFunctionKind::kWriter:
      // What is not in a set, such as the names of buffers, it leaves as it is.
      if (is_bound && PySet_CheckExact(self) && world_.is_outside(self) && count == 1 &&
          !keyword_names && is_primitive(arguments[0]) &&
          std::strcmp(c_name(callable), "discard") == 0) {
        const int found = contains(self, arguments[0]);
        if (found < 0) return nullptr;
        if (!found) return Py_NewRef(Py_None);
      }
      if (is_bound && PyDict_CheckExact(self) && world_.is_outside(self) &&
          world_.defers_effects() && !world_.is_iterated(self) && (count == 1 || count == 2) &&
          !keyword_names && is_primitive(arguments[0]) && std::strcmp(c_name(callable), "pop") == 0)
        return pop_item(self, arguments[0], count == 2 ? arguments[1] : nullptr);
      if (self && (!world_.is_own(self) || guards::is_tensor(self)))
        return world_.stop(std::string("the program calls ") + c_name(callable) + " of a " +
                           Py_TYPE(self)->tp_name + " from outside");
      if (self && passes_over(self, callable))
        return world_.stop(std::string("the program calls another class's ") + c_name(callable) +
                           " on a " + Py_TYPE(self)->tp_name);
      break;
    case CFunctionKind::kOfClass:
      return call_of_class(callable, arguments, count, keyword_names);
    case CFunctionKind::kState:
      return call_state(callable, arguments, count, keyword_names);
    case CFunctionKind::kReader:
    case CFunctionKind::kPure: {
      if (std::strcmp(c_name(callable), "exc_info") == 0 && !guard_handled_exception(callable))
        return nullptr;
      // One item of a dict needs no guard on the others. A class's own __getitem__ is not asked.
      const bool is_get = std::strcmp(c_name(callable), "get") == 0;
      if (is_get && is_bound && !(self = unproxied(self))) return nullptr;
      if (is_get && is_bound && PyDict_Check(self) &&
          Py_TYPE(self)->tp_as_mapping->mp_subscript == PyDict_Type.tp_as_mapping->mp_subscript &&
          world_.is_outside(self) && !keyword_names && (count == 1 || count == 2) &&
          is_primitive(arguments[0])) {
        const int found = contains(self, arguments[0]);
        if (found < 0) return nullptr;
        if (found) return item(self, arguments[0]);
        return Py_NewRef(count == 2 ? arguments[1] : Py_None);
      }
      break;
    }
    case CFunctionKind::kInferenceMode:
      return PyBool_FromLong(world_.began_in_inference());
    case CFunctionKind::kSwitch:
      // The graph's history is kept by the grad mode that it is called in.
      if (!world_.began_with_grad() && total == 1 && arguments[0] == Py_True)
        return world_.stop("the program switches grad mode on that was off when it was called");
      break;
  }
  if (kind == CFunctionKind::kFind || kind == CFunctionKind::kStore || kind == CFunctionKind::kMake)
    return world_.stop(std::string("the program calls ") + c_name(callable) + " in an unusual way");
  if (count > 0 && PyType_Check(arguments[0]) && std::strcmp(c_name(callable), "__new__") == 0 &&
      !world_.ends_silently(reinterpret_cast<PyTypeObject*>(arguments[0])))
    return nullptr;
  // An unbound method has its object among the arguments.
  const bool is_unbound = self && !is_bound;
  const bool is_method = self && (kind == CFunctionKind::kReader || kind == CFunctionKind::kWriter);
  const CUse use = is_method ? use_of_method(c_name(callable), self) : CUse::kReads;
  if (is_method && world_.is_own(self) && !reads_own_items(c_name(callable))) {
    if (!expose_for(use, nullptr, arguments + is_unbound, total - is_unbound)) return nullptr;
  } else if (!expose_for(use, self, arguments + is_unbound, total - is_unbound)) {
    return nullptr;
  }
  if (is_method)
    for (std::size_t i = 0; i < total; ++i) world_.note_search(arguments[i], self);
  if (const char* name = c_name(callable);
      (std::strcmp(name, "repr") == 0 || std::strcmp(name, "ascii") == 0 ||
       std::strcmp(name, "format") == 0 || std::strcmp(name, "__repr__") == 0 ||
       std::strcmp(name, "__str__") == 0 || std::strcmp(name, "__format__") == 0) &&
      (count > 0 || is_bound)) {
    PyObject* printed = is_bound ? self : arguments[0];
    if (!prints_the_same(printed)) return world_.stop("the text of an object may name its address");
    if (PyType_Check(printed)) world_.guard_name(printed);
    if (is_bound && PyUnicode_Check(self) && formats_attributes(self))
      return world_.stop("the program formats attributes of objects");
  } else if (std::strcmp(name, "format_map") == 0) {
    return world_.stop("the program formats attributes of objects");
  } else if (self && (std::strcmp(name, "__reduce_ex__") == 0)) {
    if (!world_.expose_state(self) || !know_instance_dict(self)) return nullptr;
  }
  if (sorts_by_text(c_name(callable), arguments, total))
    for (std::size_t i = 0; i < total; ++i)
      if (!prints_the_same(arguments[i]) && !prints(arguments[i]))
        return world_.stop("the program sorts by texts that may name addresses");
  const TakerScope scope(*this, use == CUse::kReads ? Taker::kReader : Taker::kInterpreter);
  return world_.admit(PyObject_Vectorcall(callable, arguments, count, keyword_names),
                      c_name(callable), 1);
}

// C code may hand out the very dict.
bool Interpreter::know_instance_dict(PyObject* instance) {
  const SourceId source = world_.source_of(instance);
  PyObject** const dict = source == kNoSource ? nullptr : _PyObject_GetDictPtr(instance);
  if (!dict || !*dict) return true;
  return static_cast<bool>(Ref::steal(world_.read(
      *dict, world_.guards().sources().add(SourceKind::kInstanceDict, source, nullptr))));
}

PyObject* Interpreter::call_of_class(PyObject* callable, PyObject* const* arguments,
                                     std::size_t count, PyObject* keyword_names) {
  const std::string_view name = c_name(callable);
  const std::size_t total = count + keyword_count(keyword_names);
  if (name.starts_with("is_") && count == 2) world_.guard_identity_of(arguments[0], arguments[1]);
  // Classes answer for their bases and, where they are abstract, for what is registered with them.
  static PyObject* const class_name = PyUnicode_InternFromString("__class__");
  if ((name == "isinstance" || name == "issubclass") && count > 1 && !PyType_Check(arguments[1]) &&
      !world_.expose(arguments[1]))
    return nullptr;
  for (std::size_t i = 0; i < total; ++i) {
    if (PyTypeObject* type = Py_TYPE(arguments[i]); guards::is_made_by_python(type))
      world_.guards().guard_type_attribute(type, class_name, _PyType_Lookup(type, class_name));
    if (PyType_Check(arguments[i])) {
      auto* type = reinterpret_cast<PyTypeObject*>(arguments[i]);
      if (guards::is_made_by_python(type))
        world_.guards().guard_type_attribute(type, class_name, _PyType_Lookup(type, class_name));
    } else if (Py_TYPE(arguments[i])->tp_getattro != PyObject_GenericGetAttr &&
               !guards::is_tensor(arguments[i]) && !PyModule_Check(arguments[i]) &&
               guards::content_of(arguments[i]) == guards::Content::kUnknown &&
               !world_.expose(arguments[i])) {
      return nullptr;  // its class may be one that it tells
    }
  }
  if (name == "isinstance" && total == 2 && guards::is_tensor(arguments[0])) {
    const int found = is_instance_of(arguments[0], arguments[1]);
    return found < 0 ? nullptr : PyBool_FromLong(found);
  }
  if (name.starts_with("_abc_")) {
    static PyObject* const token = find_cache_token();
    const Ref nothing = Ref::steal(PyTuple_New(0));
    const Ref now = token ? Ref::steal(PyObject_CallNoArgs(token)) : Ref();
    if (!now) return world_.stop("the program asks an abstract class");
    world_.guards().guard_answer(token, nothing.get(), now.get());
  }
  return world_.admit(PyObject_Vectorcall(callable, arguments, count, keyword_names),
                      c_name(callable));
}

// The program may ask which exception is handled where it handles one itself, or where none was
// when it began.
bool Interpreter::guard_handled_exception(PyObject* exc_info) {
  PyObject* handled = PyThreadState_Get()->exc_info->exc_value;
  if (handled && handled != Py_None && handled != handled_before_) return true;
  const Ref nothing = Ref::steal(PyTuple_New(0)),
            answer = Ref::steal(PyObject_CallNoArgs(exc_info));
  if (!answer) return false;
  if (PyTuple_GET_ITEM(answer.get(), 0) != Py_None) {
    world_.stop("the program asks which exception is handled outside of it");
    return false;
  }
  world_.guards().guard_answer(exc_info, nothing.get(), answer.get());
  return true;
}

// A switch of the process: the guards ask again.
PyObject* Interpreter::call_state(PyObject* callable, PyObject* const* arguments, std::size_t count,
                                  PyObject* keyword_names) {
  if (keyword_count(keyword_names) != 0 || count != 0)
    return world_.stop(std::string("the program calls ") + c_name(callable) + " in an unusual way");
  Ref answer = Ref::steal(PyObject_Vectorcall(callable, arguments, count, nullptr));
  if (!answer) return nullptr;
  if (!is_primitive(answer.get()))
    return world_.stop(std::string(c_name(callable)) + " answers with an object");
  const Ref nothing = Ref::steal(PyTuple_New(0));
  world_.guards().guard_answer(callable, nothing.get(), answer.get());
  return answer.release();
}

}  // namespace backplane::capture
