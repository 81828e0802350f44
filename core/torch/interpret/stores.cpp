// Instructions that write into objects.
#include <structmember.h>

#include "core/torch/interpret/interpreter.h"

namespace backplane::capture {

namespace {

// Takes any object: a store that is done later does not fail then.
bool is_writable_slot(PyObject* descriptor) {
  if (Py_TYPE(descriptor) != &PyMemberDescr_Type) return false;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
  return (member->type == T_OBJECT || member->type == T_OBJECT_EX) &&
         (member->flags & READONLY) == 0;
}

}  // namespace

bool Interpreter::store_in_instance(PyObject* owner, PyObject* name, PyObject* value) {
  const auto refuse = [&](const std::string& why) {
    world_.stop("the program sets ." + std::string(PyUnicode_AsUTF8(name)) +
                " of an object from outside (" + Py_TYPE(owner)->tp_name + ")" + why);
    return false;
  };
  if (!world_.is_outside(owner) || guards::is_tensor(owner)) return refuse("");
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(owner), name);
  PyObject* place = nullptr;
  if (descriptor && Py_TYPE(descriptor)->tp_descr_set) {
    if (!is_writable_slot(descriptor)) return refuse(", through a descriptor");
    if (!world_.defers_effects()) return refuse(", in a slot");
    if (!value) return refuse(", a slot that is deleted");
    place = owner;
  } else {
    place = dict_of(owner);
    if (!place) return refuse(", which has no __dict__");
    if (world_.is_iterated(place)) return refuse(", whose __dict__ it iterates over");
    if (!value) {
      bool failed = false;
      const Ref old = Ref::steal(find_in_instance(owner, name, failed));
      if (failed) return false;
      if (!old) {
        PyErr_SetObject(PyExc_AttributeError, name);
        return false;
      }
    }
  }
  return world_.write(EffectKind::kAttribute, owner, name, value, place);
}

bool Interpreter::take_items(PyObject* key, PyObject*& value) {
  if (!value || !PySlice_Check(key)) return true;
  if (PyObject* list = world_.seen_list(value)) value = list;
  return !world_.stopped() && world_.expose_items(value);
}

bool Interpreter::store_item(PyObject* container, PyObject* key, PyObject* value) {
  const auto refuse = [&] {
    world_.stop(std::string("the program changes a ") + Py_TYPE(container)->tp_name +
                " from outside");
    return false;
  };
  if (!world_.defers_effects() || !world_.is_outside(container)) return refuse();
  if (PyList_CheckExact(container)) {
    PyObject* list = world_.changed_list(container);
    if (!list || !take_items(key, value)) return false;
    const int status = value ? PyObject_SetItem(list, key, value) : PyObject_DelItem(list, key);
    return status == 0 && !world_.stopped();
  }
  if ((!PyDict_CheckExact(container) && Py_TYPE(container) != &PyODict_Type) ||
      (!is_primitive(key) && !is_fixed(key)) || world_.is_iterated(container))
    return refuse();
  if (!value) {
    const Ref old = Ref::steal(item(container, key));
    if (!old) return false;
  }
  return world_.write(EffectKind::kItem, container, key, value, container);
}

PyObject* Interpreter::pop_item(PyObject* dict, PyObject* key, PyObject* fallback) {
  const int found = contains(dict, key);
  if (found < 0) return nullptr;
  if (!found) {
    if (!fallback) PyErr_SetObject(PyExc_KeyError, key);
    return Py_XNewRef(fallback);
  }
  Ref value = Ref::steal(item(dict, key));
  if (!value || !world_.write(EffectKind::kItem, dict, key, nullptr, dict)) return nullptr;
  return value.release();
}

bool Interpreter::store_global(PyObject* globals, PyObject* builtins, PyObject* name,
                               PyObject* value) {
  if (!world_.defers_effects() || !PyDict_CheckExact(globals)) {
    world_.stop("the program changes a global variable");
    return false;
  }
  if (!value) {
    const Effects::Found found = world_.effects().find(globals, name);
    const bool is_there =
        found.found ? found.value != nullptr : PyDict_GetItemWithError(globals, name) != nullptr;
    if (!is_there) {
      PyErr_Format(PyExc_NameError, "name '%U' is not defined", name);
      return false;
    }
    const Ref old = Ref::steal(global(globals, builtins, name));
    if (!old) return false;
  }
  return world_.write(EffectKind::kGlobal, globals, name, value, globals);
}

bool Interpreter::append(PyObject* list, PyObject* value) {
  if (!world_.is_outside(list)) return PyList_Append(list, value) == 0;
  if (world_.effects().find_list(list)) {
    PyObject* known = world_.changed_list(list);
    return known && PyList_Append(known, value) == 0;
  }
  if (!world_.defers_effects() || world_.is_iterated(list)) {
    world_.stop("the program appends to a list from outside");
    return false;
  }
  return world_.append(list, value);
}

bool Interpreter::store_cell(PyObject* cell, PyObject* value) {
  if (!world_.defers_effects()) {
    world_.stop("the program changes a variable of an enclosing function");
    return false;
  }
  return world_.write(EffectKind::kCell, cell, nullptr, value, cell);
}

}  // namespace backplane::capture
