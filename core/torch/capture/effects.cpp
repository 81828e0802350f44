#include "core/torch/capture/effects.h"

#include <structmember.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "core/torch/capture/interpreter.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

bool same_key(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (!a || !b || !is_primitive(a) || !is_primitive(b)) return false;
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

// The dict that the instance keeps its attributes in, or null.
PyObject* dict_of(PyObject* object) {
  if (PyType_Check(object)) return nullptr;
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict ? *dict : nullptr;
}

}  // namespace

void Effects::write(EffectKind kind, PyObject* owner, PyObject* key, PyObject* value,
                    PyObject* place) {
  const auto found = std::find_if(effects_.rbegin(), effects_.rend(), [&](const Effect& known) {
    return known.place == place && same_key(known.key.get(), key);
  });
  // Between a deletion and a new value lies the order of a dict's keys.
  if (found != effects_.rend() && found->value && value) {
    found->value = Ref::borrow(value);
    return;
  }
  effects_.push_back({kind, Ref::borrow(owner), Ref::borrow(key), Ref::borrow(value), place});
}

Effects::Found Effects::find(const PyObject* place, PyObject* key) const {
  const auto found = std::find_if(effects_.rbegin(), effects_.rend(), [&](const Effect& known) {
    return known.place == place && same_key(known.key.get(), key);
  });
  if (found == effects_.rend()) return {};
  return {true, found->value.get()};
}

PyObject* Effects::find_list(const PyObject* list) const {
  const auto found = std::ranges::find_if(effects_, [&](const Effect& known) {
    return known.kind == EffectKind::kList && known.place == list;
  });
  return found == effects_.end() ? nullptr : found->value.get();
}

void Effects::append(PyObject* list, PyObject* value) {
  effects_.push_back({EffectKind::kAppend, Ref::borrow(list), {}, Ref::borrow(value), list});
}

bool Effects::has_appended(const PyObject* list) const {
  return std::ranges::any_of(effects_, [&](const Effect& known) {
    return known.kind == EffectKind::kAppend && known.place == list;
  });
}

bool Effects::replace_list(PyObject* list, PyObject* copy) {
  std::vector<Effect> others;
  for (Effect& effect : effects_) {
    if (effect.kind != EffectKind::kAppend || effect.place != list)
      others.push_back(std::move(effect));
    else if (PyList_Append(copy, effect.value.get()) != 0)
      return false;
  }
  effects_ = std::move(others);
  effects_.push_back({EffectKind::kList, Ref::borrow(list), {}, Ref::borrow(copy), list});
  return true;
}

bool Effects::touches(PyObject* object) const {
  if (effects_.empty()) return false;
  PyObject* dict = dict_of(object);
  return std::ranges::any_of(effects_, [&](const Effect& known) {
    return known.place == object || known.owner.get() == object || (dict && known.place == dict);
  });
}

PyObject* World::read_back(const Effects::Found& found, PyObject* missing_error, PyObject* key) {
  if (found.value) return Py_NewRef(found.value);
  PyErr_SetObject(missing_error, key);
  return nullptr;
}

// A write through one path must not be one to what was read by another.
void World::guard_written() {
  guards::Sources& sources = guards_.sources();
  std::map<PyTypeObject*, std::set<SourceId>> groups;  // of what may be one object
  for (const Effect& effect : effects_.all()) {
    PyObject* owner = effect.owner.get();
    SourceId source = source_of(owner);
    if (source == kNoSource) source = sources.add(SourceKind::kConstant, kNoSource, owner);
    groups[Py_TYPE(owner)].insert(source);
    if (effect.kind != EffectKind::kAttribute || effect.place == owner) continue;
    const SourceId dict = sources.add(SourceKind::kInstanceDict, source, nullptr);
    const SourceId known = source_of(effect.place);
    if (known != kNoSource && known != dict) guards_.guard_same(dict, known);
    groups[&PyDict_Type].insert(known != kNoSource ? known : dict);
  }
  if (groups.empty()) return;
  for (const auto& [object, known] : known_) {
    const auto group = groups.find(Py_TYPE(object));
    if (known.source != kNoSource && group != groups.end()) group->second.insert(known.source);
  }
  for (const auto& [type, group] : groups)
    if (group.size() > 1)
      guards_.guard_all_distinct(std::vector<SourceId>(group.begin(), group.end()));
}

bool World::settle() {
  guard_written();
  if (!defers_effects_ && !settle_effects()) return false;
  if (identities_.size() > 1) guards_.guard_all_distinct(std::move(identities_));
  return true;
}

bool World::settle_effects() {
  for (const Effect& effect : effects_.all()) {
    PyObject* name = effect.key.get();
    guards::Sources& sources = guards_.sources();
    const SourceId dict =
        sources.add(SourceKind::kInstanceDict, source_of(effect.owner.get()), nullptr);
    PyObject* before = PyDict_GetItemWithError(effect.place, name);
    Ref held;
    if (before)
      held = Ref::steal(read(before, sources.add(SourceKind::kDictItem, dict, name)));
    else
      guards_.guard_absence(dict, name);
    if (stopped()) return false;
    if (held.get() == effects_.find(effect.place, name).value) continue;
    stop("the program sets ." + std::string(PyUnicode_AsUTF8(name)) +
         " of an object from outside (" + Py_TYPE(effect.owner.get())->tp_name + ")");
    return false;
  }
  effects_.clear();
  return true;
}

bool World::may_write() {
  if (writes_forbidden_) stop("the program changes what is outside while it holds a lock");
  return !writes_forbidden_;
}

bool World::write(EffectKind kind, PyObject* owner, PyObject* key, PyObject* value,
                  PyObject* place) {
  if (may_write()) effects_.write(kind, owner, key, value, place);
  return !stopped();
}

bool World::append(PyObject* list, PyObject* value) {
  if (may_write()) effects_.append(list, value);
  return !stopped();
}

// A list from outside as the program sees it: a copy from its first change on.
PyObject* World::changed_list(PyObject* list) {
  if (!may_write()) return nullptr;
  if (PyObject* known = effects_.find_list(list)) return known;
  if (is_iterated(list))
    return stop("the program changes a list from outside that it iterates over");
  const Ref copy = Ref::steal(copy_list(list));
  if (!copy || !effects_.replace_list(list, copy.get())) return nullptr;
  return effects_.find_list(list);
}

PyObject* World::seen_list(PyObject* object) {
  if (PyObject* known = effects_.find_list(object)) return known;
  return effects_.has_appended(object) ? changed_list(object) : nullptr;
}

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

bool Interpreter::store_item(PyObject* container, PyObject* key, PyObject* value) {
  const auto refuse = [&] {
    world_.stop(std::string("the program changes a ") + Py_TYPE(container)->tp_name +
                " from outside");
    return false;
  };
  if (!world_.defers_effects() || !world_.is_outside(container)) return refuse();
  if (PyList_CheckExact(container)) {
    PyObject* list = world_.changed_list(container);
    if (!list) return false;
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
