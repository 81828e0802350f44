// Items, iteration and truth of objects, with the guards that each needs.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "core/torch/guards/content.h"
#include "core/torch/interpret/interpreter.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

// `dict` itself or a subclass that looks items up as it does.
bool looks_up_as_dict(PyObject* object) {
  if (!PyDict_Check(object)) return false;
  static PyObject* const names[] = {PyUnicode_InternFromString("__getitem__"),
                                    PyUnicode_InternFromString("__contains__")};
  return std::ranges::all_of(names, [object](PyObject* name) {
    return _PyType_Lookup(Py_TYPE(object), name) == _PyType_Lookup(&PyDict_Type, name);
  });
}

bool is_sequence_item(PyObject* container, PyObject* key) {
  return (PyList_CheckExact(container) || PyTuple_CheckExact(container)) && PyLong_CheckExact(key);
}

bool is_container(PyObject* object) {
  return PyDict_Check(object) || PyList_Check(object) || PyTuple_Check(object) ||
         PyAnySet_Check(object);
}

// Whether the special method is a function of Python, which comes through the hook.
bool is_in_python(PyObject* object, PyObject* name) {
  if (!guards::is_made_by_python(Py_TYPE(object))) return false;
  PyObject* found = _PyType_Lookup(Py_TYPE(object), name);
  return found && PyFunction_Check(found);
}

// What C code gives back is what a function of Python gave, or an item of the program's own.
Taker taker_of(bool is_in_python) { return is_in_python ? Taker::kInterpreter : Taker::kReader; }

// Whether the class has code in C that says whether an object is true.
bool has_truth_in_c(PyTypeObject* type) {
  type = guards::base_in_c(type);
  return (type->tp_as_number && type->tp_as_number->nb_bool) ||
         (type->tp_as_mapping && type->tp_as_mapping->mp_length) ||
         (type->tp_as_sequence && type->tp_as_sequence->sq_length);
}

// A key from outside, or a value, that C code looks into when it reaches for an item; null where
// the capture has ended. A tensor is indexed with what is inside, tensors too.
Ref guarded(World& world, PyObject* container, PyObject* object) {
  if (guards::is_tensor(container) && world.holds_outside_sequence(object))
    return Ref::steal(world.copy_sequence(object));
  return world.expose(object) ? Ref::borrow(object) : Ref();
}

}  // namespace

PyObject* Interpreter::unproxied(PyObject* object) {
  const SourceId source = world_.source_of(object);
  if (Py_TYPE(object) != &PyDictProxy_Type || source == kNoSource) return object;
  const Ref mapping =
      Ref::steal(world_.read(guards::mapping_of(object),
                             world_.guards().sources().add(SourceKind::kProxied, source, nullptr)));
  return mapping.get();  // World keeps it
}

PyObject* Interpreter::item(PyObject* container, PyObject* key) {
  if (world_.stopped()) return world_.stop("");
  container = unproxied(container);
  if (!container) return nullptr;
  const SourceId source = world_.source_of(container);
  guards::Sources& sources = world_.guards().sources();
  if (PyObject* list = world_.seen_list(container)) return item(list, key);
  if (source != kNoSource && looks_up_as_dict(container) && (is_primitive(key) || is_fixed(key))) {
    if (const Effects::Found written = world_.effects().find(container, key); written.found) {
      world_.guard_place(container, source);
      return World::read_back(written, PyExc_KeyError, key);
    }
    world_.guard_identity_of_nan(key);
    PyObject* value = PyDict_GetItemWithError(container, key);
    if (value) return world_.read(value, sources.add(SourceKind::kDictItem, source, key));
    if (PyErr_Occurred()) return nullptr;
    world_.guards().guard_absence(source, key);
    static PyObject* const missing = PyUnicode_InternFromString("__missing__");
    if (_PyType_Lookup(Py_TYPE(container), missing))
      return world_.stop("the program reads a missing key of a dict with defaults from outside");
    PyErr_SetObject(PyExc_KeyError, key);
    return nullptr;
  }
  if (source != kNoSource && is_sequence_item(container, key)) {
    const Py_ssize_t count = Py_SIZE(container);
    world_.guards().guard_length(source, count);
    Py_ssize_t index = PyLong_AsSsize_t(key);
    if (index < 0) index += count;
    if (index >= 0 && index < count && !PyErr_Occurred()) {
      PyObject* value = PySequence_Fast_GET_ITEM(container, index);
      const SourceKind kind =
          PyList_CheckExact(container) ? SourceKind::kListItem : SourceKind::kTupleItem;
      return world_.read(value, sources.add(kind, source, nullptr, index));
    }
    PyErr_Clear();
  }
  static PyObject* const item_name = PyUnicode_InternFromString("__getitem__");
  const bool is_python = is_in_python(container, item_name);
  if (!is_python && source != kNoSource && !world_.expose_items(container)) return nullptr;
  const Ref own_key = is_python ? Ref::borrow(key) : guarded(world_, container, key);
  if (!own_key) return nullptr;
  static PyObject* const missing_name = PyUnicode_InternFromString("__missing__");
  if (source != kNoSource && PyDict_Check(container) &&
      _PyType_Lookup(Py_TYPE(container), missing_name) && PyDict_Contains(container, key) != 1)
    return world_.stop("the program reads a missing key of a dict with defaults from outside");
  const TakerScope scope(*this, taker_of(is_python));
  // What the program put in holds it there: the container and this function.
  return world_.admit(PyObject_GetItem(container, own_key.get()), "an item",
                      world_.is_own(container) ? 2 : 1);
}

bool Interpreter::set_item(PyObject* container, PyObject* key, PyObject* value) {
  if (!world_.is_own(container) && !guards::is_tensor(container)) {
    if (!world_.defers_effects() && value && world_.is_outside(container) &&
        looks_up_as_dict(container) && is_primitive(key) && contains(container, key) == 1) {
      const Ref before = Ref::steal(item(container, key));
      if (!before || before.get() == value) return static_cast<bool>(before);  // nothing changes
    }
    return store_item(container, key, value);
  }
  if (PyList_Check(container) && !take_items(key, value)) return false;
  static PyObject* const set_name = PyUnicode_InternFromString("__setitem__");
  const bool is_python = is_in_python(container, set_name);
  const Ref own_key = is_python ? Ref::borrow(key) : guarded(world_, container, key);
  // Own containers keep the value as it is.
  const bool keeps = is_python || PyList_CheckExact(container) || PyDict_Check(container);
  const Ref own_value = value && !keeps ? guarded(world_, container, value) : Ref::borrow(value);
  if (!own_key || (value && !own_value)) return false;
  const int status = value ? PyObject_SetItem(container, own_key.get(), own_value.get())
                           : PyObject_DelItem(container, own_key.get());
  return status == 0 && !world_.stopped();
}

int Interpreter::contains(PyObject* container, PyObject* value) {
  container = unproxied(container);
  if (!container) return -1;
  const SourceId source = world_.source_of(container);
  if (PyObject* list = world_.seen_list(container)) return contains(list, value);
  if (source != kNoSource && looks_up_as_dict(container) && is_primitive(value)) {
    if (const Effects::Found written = world_.effects().find(container, value); written.found) {
      world_.guard_place(container, source);
      return written.value ? 1 : 0;
    }
    world_.guard_identity_of_nan(value);
    PyObject* found = PyDict_GetItemWithError(container, value);
    if (PyErr_Occurred()) return -1;
    if (found)
      world_.guards().load(world_.guards().sources().add(SourceKind::kDictItem, source, value));
    else
      world_.guards().guard_absence(source, value);
    return found ? 1 : 0;
  }
  if (!world_.expose(container) || !world_.expose(value)) return -1;
  world_.note_search(value, container);
  const int found = PySequence_Contains(container, value);
  return world_.stopped() ? -1 : found;
}

int Interpreter::truth(PyObject* object) {
  if (object == Py_True) return 1;
  if (object == Py_False || object == Py_None) return 0;
  if (PyObject* list = world_.seen_list(object)) return truth(list);
  object = unproxied(object);
  if (!object) return -1;
  const SourceId source = world_.source_of(object);
  if (is_container(object) && world_.effects().touches(object) && !world_.expose(object)) return -1;
  if (source != kNoSource && is_container(object))
    world_.guards().guard_length(source, Py_SIZE(object));
  if (source != kNoSource && PyDict_Check(object))
    world_.guards().guard_length(source, PyDict_GET_SIZE(object));
  if (!is_container(object) && has_truth_in_c(Py_TYPE(object)) && !world_.expose_items(object))
    return -1;
  const int is_true = PyObject_IsTrue(object);
  return world_.stopped() ? -1 : is_true;
}

PyObject* Interpreter::iterator(PyObject* object) {
  if (PyObject* list = world_.seen_list(object)) return iterator(list);
  object = unproxied(object);
  if (!object) return nullptr;
  if (world_.is_outside(object)) {
    if (PyIter_Check(object))
      return world_.stop(std::string("the program iterates over a ") + Py_TYPE(object)->tp_name +
                         " from outside");
    if (!world_.expose_items(object)) return nullptr;
  }
  world_.note_iterated(object);
  if (PyAnySet_Check(object)) {
    Py_ssize_t position = 0;
    PyObject* key;
    Py_hash_t hash;
    while (_PySet_NextEntry(object, &position, &key, &hash))
      if (!is_primitive(key))
        return world_.stop("the order of a set of objects depends on their addresses");
  }
  if (PyGen_CheckExact(object) && world_.is_own(object)) return Py_NewRef(object);
  static PyObject* const iter_name = PyUnicode_InternFromString("__iter__");
  const TakerScope scope(*this, taker_of(is_in_python(object, iter_name)));
  return world_.admit(PyObject_GetIter(object), "iter()");
}

PyObject* Interpreter::next(PyObject* iterator) {
  static PyObject* const next_name = PyUnicode_InternFromString("__next__");
  const bool is_python = is_in_python(iterator, next_name);
  if (world_.is_outside(iterator) && !is_python)
    return world_.stop("the program advances an iterator from outside");
  if (!Py_TYPE(iterator)->tp_iternext) {
    PyErr_Format(PyExc_TypeError, "'%.200s' object is not an iterator", Py_TYPE(iterator)->tp_name);
    return nullptr;
  }
  if (!is_python && !world_.expose_next(iterator)) return nullptr;
  const TakerScope scope(
      *this, taker_of(is_python || PyGen_CheckExact(iterator) || PySeqIter_Check(iterator) ||
                      use_of_class(Py_TYPE(iterator)) != CUse::kReads));
  PyObject* value = Py_TYPE(iterator)->tp_iternext(iterator);
  if (!value) {
    if (world_.stopped()) return world_.stop("");
    return nullptr;
  }
  // A list that the program made hands out what the program put in.
  return world_.admit(value, Py_TYPE(iterator)->tp_name);
}

}  // namespace backplane::capture
