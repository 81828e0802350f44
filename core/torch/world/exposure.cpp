// Before code in C looks at an object: the guards of all that it can read there.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/torch/guards/content.h"
#include "core/torch/world/c_functions.h"
#include "core/torch/world/world.h"

namespace backplane::capture {

namespace {

using cpython::Ref;
using guards::Content;

constexpr std::size_t kMostExposed = 100'000;

// What C code does with it runs Python, which is captured, or is guarded at the door.
bool is_leaf(PyObject* object) {
  return is_primitive(object) || is_fixed(object) || guards::is_tensor(object) ||
         PyFunction_Check(object) || PyFrame_Check(object) || PyTraceBack_Check(object) ||
         Py_TYPE(object) == &PySuper_Type;
}

// What it is given is looked at as the frame begins.
bool runs_python(PyObject* object) {
  return PyFunction_Check(object) ||
         (PyMethod_Check(object) && PyFunction_Check(PyMethod_GET_FUNCTION(object)));
}

void add_referents(PyObject* object, std::vector<PyObject*>& out) {
  PyTypeObject* type = guards::base_in_c(Py_TYPE(object));
  if (!PyType_HasFeature(type, Py_TPFLAGS_HAVE_GC) || !type->tp_traverse) return;
  type->tp_traverse(
      object,
      [](PyObject* referent, void* found) {
        static_cast<std::vector<PyObject*>*>(found)->push_back(referent);
        return 0;
      },
      &out);
}

// What C code finds in an object that the program made.
void add_held(PyObject* object, std::vector<PyObject*>& out) {
  if (PyGen_CheckExact(object)) return;  // what it gives is looked at as it comes
  if (PyExceptionInstance_Check(object)) {
    out.push_back(reinterpret_cast<PyBaseExceptionObject*>(object)->args);
    return;
  }
  switch (guards::content_of(object)) {
    case Content::kNone:
    case Content::kIdentity:
    case Content::kValue:
      return;
    case Content::kItems:
    case Content::kUnknown:
      add_referents(object, out);
  }
}

// A key that C code would look for by the tensor's identity.
bool is_found_by_tensor(PyObject* key) {
  if (guards::is_tensor(key)) return true;
  if (!PyTuple_Check(key)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i)
    if (is_found_by_tensor(PyTuple_GET_ITEM(key, i))) return true;
  return false;
}

}  // namespace

// The program has tensors of its own in the place of those from outside, and would not find them.
bool World::may_be_searched(PyObject* container, PyObject* key) {
  if (!is_found_by_tensor(key)) return true;
  stop(std::string("code in C would look through a ") + Py_TYPE(container)->tp_name +
       " from outside whose keys are tensors");
  return false;
}

bool World::expose_child(PyObject* child, SourceId source) {
  if (++exposed_count_ > kMostExposed) {
    stop("a container from outside has too many elements to be guarded");
    return false;
  }
  return static_cast<bool>(Ref::steal(read(child, source)));
}

bool World::expose_dict(PyObject* dict, SourceId source, std::vector<PyObject*>& out_children) {
  guards_.guard_keys(source, dict);
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value)) {
    // The guard of the keys holds the very objects.
    if (!may_be_searched(dict, key)) return false;
    if (!is_primitive(key)) {
      if (!Ref::steal(read_constant(key))) return false;
      out_children.push_back(key);
    }
    if (!expose_child(value, guards_.sources().add(SourceKind::kDictItem, source, key)))
      return false;
    out_children.push_back(value);
  }
  return true;
}

// The pieces of a container, each read by the door; what is in them stays unread.
bool World::expose_pieces(PyObject* object, SourceId source, std::vector<PyObject*>& out_children) {
  guards::Sources& sources = guards_.sources();
  const auto add = [&](PyObject* child, SourceKind kind, PyObject* key, Py_ssize_t index) {
    if (!expose_child(child, sources.add(kind, source, key, index))) return false;
    out_children.push_back(child);
    return true;
  };
  for (PyObject* descriptor : guards::parts_of(object)) {
    const Ref part = Ref::steal(
        Py_TYPE(descriptor)
            ->tp_descr_get(descriptor, object, reinterpret_cast<PyObject*>(Py_TYPE(object))));
    if (!part || !add(part.get(), SourceKind::kSlot, descriptor, 0)) return false;
    alive_.push_back(part);
  }
  if (PyDict_Check(object)) return expose_dict(object, source, out_children);
  if (PyList_Check(object) || PyTuple_Check(object)) {
    const bool is_list = PyList_Check(object);
    const Py_ssize_t count = is_list ? PyList_GET_SIZE(object) : PyTuple_GET_SIZE(object);
    guards_.guard_length(source, count);
    for (Py_ssize_t i = 0; i < count; ++i)
      if (!add(is_list ? PyList_GET_ITEM(object, i) : PyTuple_GET_ITEM(object, i),
               is_list ? SourceKind::kListItem : SourceKind::kTupleItem, nullptr, i))
        return false;
  } else if (PyAnySet_Check(object)) {
    guards_.guard_length(source, PySet_GET_SIZE(object));
    Py_ssize_t position = 0;
    PyObject* key;
    Py_hash_t hash;
    for (Py_ssize_t i = 0; _PySet_NextEntry(object, &position, &key, &hash); ++i)
      if (!may_be_searched(object, key) || !add(key, SourceKind::kSetItem, nullptr, i))
        return false;
  } else if (guards::is_deque(object)) {
    guards_.guard_length(source, Py_SIZE(object));
    for (Py_ssize_t i = 0; i < Py_SIZE(object); ++i) {
      const Ref item = Ref::steal(guards::deque_item(object, i));
      if (!item || !add(item.get(), SourceKind::kDequeItem, nullptr, i)) return false;
    }
  } else if (PyCell_Check(object)) {
    if (PyObject* content = PyCell_GET(object))
      return add(content, SourceKind::kCellContent, nullptr, 0);
    guards_.guard_empty_cell(source);
  } else if (guards::shows_mapping(object)) {
    return add(guards::mapping_of(object), SourceKind::kProxied, nullptr, 0);
  } else if (PyMethod_Check(object)) {
    return add(PyMethod_GET_SELF(object), SourceKind::kMethodSelf, nullptr, 0) &&
           add(PyMethod_GET_FUNCTION(object), SourceKind::kMethodFunction, nullptr, 0);
  } else if (PyWeakref_CheckRef(object)) {
    return add(PyWeakref_GET_OBJECT(object), SourceKind::kReferent, nullptr, 0);
  } else if (std::strcmp(guards::base_in_c(Py_TYPE(object))->tp_name, "types.SimpleNamespace") ==
             0) {
    return expose_attributes(object, source, out_children);
  }
  return true;
}

bool World::expose_attributes(PyObject* object, SourceId source,
                              std::vector<PyObject*>& out_children) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  if (!dict || !*dict) {
    guards_.guard_no_instance_dict(source);
    return true;
  }
  return expose_dict(*dict, guards_.sources().add(SourceKind::kInstanceDict, source, nullptr),
                     out_children);
}

bool World::expose_outside(PyObject* object, const Known& known,
                           std::vector<PyObject*>& out_children) {
  const SourceId source = known.source;
  switch (guards::content_of(object)) {
    case Content::kNone:
      return true;
    case Content::kIdentity:
      guards_.guard_identity(source, object);
      return true;
    case Content::kValue: {
      const Ref snapshot = guards::content_snapshot(object);
      if (!snapshot) {
        PyErr_Clear();
        break;
      }
      guards_.guard_content(source, snapshot.get(), guards::is_immutable_value(object));
      return true;
    }
    case Content::kItems:
      if (effects_.touches(object)) {
        stop(std::string("code in C would look at a ") + Py_TYPE(object)->tp_name +
             " that the program has changed");
        return false;
      }
      return expose_pieces(object, source, out_children);
    case Content::kUnknown:
      break;
  }
  stop(std::string("code in C would look at a ") + Py_TYPE(object)->tp_name +
       " from outside, whose content no guard covers");
  return false;
}

bool World::expose_function_of(PyObject* partial) {
  PyObject* descriptor = guards::parts_of(partial).front();
  const Ref function = Ref::steal(
      Py_TYPE(descriptor)
          ->tp_descr_get(descriptor, partial, reinterpret_cast<PyObject*>(Py_TYPE(partial))));
  return function && expose_callable(function.get());
}

bool World::expose(PyObject* object) {
  std::vector<PyObject*> pending{object}, children;
  std::unordered_set<PyObject*> seen;
  while (!pending.empty()) {
    PyObject* next = pending.back();
    pending.pop_back();
    if (PyFunction_Check(next)) note_identity(next);
    if (is_leaf(next)) continue;
    if (guards::is_partial(next) && !expose_function_of(next)) return false;
    const auto found = known_.find(next);
    if (found == known_.end() || found->second.source == kNoSource) {
      if (seen.insert(next).second) add_held(next, pending);
      continue;
    }
    if (found->second.depth == Depth::kAll) {
      if (effects_.touches(next) && guards::content_of(next) == Content::kItems)
        return expose_outside(next, found->second, children);  // stops
      continue;
    }
    found->second.depth = Depth::kAll;
    children.clear();
    const Known known = found->second;  // the table may move
    // It may ask whether two are one: for a set, a memo, before it compares them.
    note_identity(next);
    if (!expose_outside(next, known, children)) return false;
    pending.insert(pending.end(), children.begin(), children.end());
  }
  return true;
}

void World::note_compared(PyObject* container) {
  std::vector<PyObject*> pending{container};
  std::unordered_set<PyObject*> seen;
  while (!pending.empty()) {
    PyObject* next = pending.back();
    pending.pop_back();
    if (is_primitive(next) || is_fixed(next) || !seen.insert(next).second) continue;
    const bool is_container = PyList_Check(next) || PyTuple_Check(next) || PyDict_Check(next) ||
                              PyAnySet_Check(next) || guards::is_deque(next);
    if (is_container)
      add_referents(next, pending);
    else if (next != container)
      note_identity(next);
  }
}

// A container may have got new items since the iterator was made.
bool World::expose_next(PyObject* iterator) {
  const auto is_made = [](PyObject* object) {
    return Py_TYPE(object)->tp_iternext && is_constructible(Py_TYPE(object));
  };
  if (!is_made(iterator)) return true;  // those of containers look at no item
  std::vector<PyObject*> pending{iterator}, referents;
  std::unordered_set<PyObject*> seen;
  bool has_chain = false;  // takes its iterables from another iterator
  while (!pending.empty()) {
    PyObject* next = pending.back();
    pending.pop_back();
    if (PyGen_CheckExact(next) || !seen.insert(next).second) continue;
    referents.clear();
    add_referents(next, referents);
    if (reads_as_it_goes(Py_TYPE(next)) && std::ranges::none_of(referents, runs_python)) {
      if (!expose(next)) return false;
      continue;
    }
    const PyTypeObject* type = guards::base_in_c(Py_TYPE(next));
    has_chain = has_chain || std::strcmp(type->tp_name, "itertools.chain") == 0;
    const bool has_containers = has_chain || is_made(next);
    for (PyObject* referent : referents)
      if (Py_TYPE(referent)->tp_iternext ||
          (has_containers && (PyTuple_CheckExact(referent) || PyList_CheckExact(referent))))
        pending.push_back(referent);
  }
  return true;
}

bool World::expose_items(PyObject* object) {
  if (is_leaf(object)) return true;
  const auto found = known_.find(object);
  if (found == known_.end() || found->second.source == kNoSource)
    return guards::shows_mapping(object) ? expose_items(guards::mapping_of(object))
                                         : expose_next(object);
  if (found->second.depth != Depth::kNone && !effects_.touches(object)) return true;
  if (found->second.depth == Depth::kNone) found->second.depth = Depth::kItems;
  const Known known = found->second;
  std::vector<PyObject*> children;
  if (!expose_outside(object, known, children)) return false;
  return !guards::shows_mapping(object) || expose_items(guards::mapping_of(object));
}

bool World::expose_state(PyObject* object) {
  const SourceId source = source_of(object);
  if (source == kNoSource) return true;
  if (guards::content_of(object) == Content::kNone && effects_.touches(object)) {
    stop(std::string("code in C would look at a ") + Py_TYPE(object)->tp_name +
         " that the program has changed");
    return false;
  }
  std::vector<PyObject*> children;
  if (!expose(object) || !expose_attributes(object, source, children)) return false;
  for (PyTypeObject* type = Py_TYPE(object); guards::is_made_by_python(type);
       type = type->tp_base) {
    Py_ssize_t position = 0;
    PyObject *name, *descriptor;
    while (PyDict_Next(type->tp_dict, &position, &name, &descriptor)) {
      if (Py_TYPE(descriptor) != &PyMemberDescr_Type) continue;
      const Ref value = Ref::steal(
          Py_TYPE(descriptor)
              ->tp_descr_get(descriptor, object, reinterpret_cast<PyObject*>(Py_TYPE(object))));
      if (!value) {
        PyErr_Clear();
        stop(std::string("code in C would look at an empty slot of a ") + Py_TYPE(object)->tp_name);
        return false;
      }
      if (!expose_child(value.get(), guards_.sources().add(SourceKind::kSlot, source, descriptor)))
        return false;
    }
  }
  return true;
}

bool World::expose_callable(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (!PyCFunction_Check(object) && type != &PyMethodDescr_Type && type != &PyWrapperDescr_Type &&
      type != &_PyMethodWrapper_Type && type != &PyClassMethodDescr_Type)
    return true;
  PyObject* self = nullptr;
  switch (classify(object, self)) {
    case CFunctionKind::kPure:
    case CFunctionKind::kOperator:
    case CFunctionKind::kOfClass:
    case CFunctionKind::kReader:
    case CFunctionKind::kNext:
    case CFunctionKind::kIter:
    case CFunctionKind::kLen:
      return !self || expose(self);
    case CFunctionKind::kWriter:
    case CFunctionKind::kFillsFirst:
      if (self && is_own(self)) return true;
      break;
    default:
      break;
  }
  stop(std::string("the program hands ") + c_name(object) + " to code in C");
  return false;
}

bool World::holds_outside_sequence(PyObject* object) {
  const bool is_list = PyList_CheckExact(object);
  if (!is_list && !PyTuple_CheckExact(object)) return false;
  if (is_outside(object)) return true;
  if (is_too_deep()) return false;
  const Py_ssize_t count = is_list ? PyList_GET_SIZE(object) : PyTuple_GET_SIZE(object);
  for (Py_ssize_t i = 0; i < count; ++i)
    if (holds_outside_sequence(is_list ? PyList_GET_ITEM(object, i) : PyTuple_GET_ITEM(object, i)))
      return true;
  return false;
}

PyObject* World::copy_sequence(PyObject* object) {
  if (!expose(object)) return nullptr;
  SequenceCopies copies;
  return copy_elements(object, copies);
}

PyObject* World::copy_elements(PyObject* object, SequenceCopies& copies) {
  if (is_too_deep()) return stop("a sequence from outside is nested too deep");
  const auto [found, is_new] = copies.try_emplace(object);
  if (!is_new)
    return found->second ? Py_NewRef(found->second.get())
                         : stop("a sequence from outside contains itself");
  const bool is_list = PyList_CheckExact(object);
  const Py_ssize_t count = is_list ? PyList_GET_SIZE(object) : PyTuple_GET_SIZE(object);
  const Ref copy = Ref::steal(is_list ? PyList_New(count) : PyTuple_New(count));
  if (!copy) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = is_list ? PyList_GET_ITEM(object, i) : PyTuple_GET_ITEM(object, i);
    PyObject* admitted = holds_outside_sequence(item)
                             ? copy_elements(item, copies)
                             : admit(Py_NewRef(item), "a sequence from outside");
    if (!admitted) return nullptr;
    if (is_list)
      PyList_SET_ITEM(copy.get(), i, admitted);
    else
      PyTuple_SET_ITEM(copy.get(), i, admitted);
  }
  own(copy.get());
  copies[object] = copy;
  return Py_NewRef(copy.get());
}

// Its items are the objects outside, which the program may change as well.
PyObject* World::copy_list(PyObject* list) {
  if (!expose_items_as_they_were(list)) return nullptr;
  const Py_ssize_t count = PyList_GET_SIZE(list);
  const Ref copy = Ref::steal(PyList_New(count));
  for (Py_ssize_t i = 0; copy && i < count; ++i) {
    PyObject* item = admit(Py_NewRef(PyList_GET_ITEM(list, i)), "a list from outside");
    if (!item) return nullptr;
    PyList_SET_ITEM(copy.get(), i, item);
  }
  if (!copy) return nullptr;
  own(copy.get());
  return Py_NewRef(copy.get());
}

// Of a list that the program has appended to, too: what was there before.
bool World::expose_items_as_they_were(PyObject* object) {
  const auto found = known_.find(object);
  if (found == known_.end() || found->second.source == kNoSource ||
      found->second.depth != Depth::kNone)
    return true;
  found->second.depth = Depth::kItems;
  std::vector<PyObject*> children;
  return expose_pieces(object, found->second.source, children);
}

}  // namespace backplane::capture
