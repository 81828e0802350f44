// What the program writes while it is captured, and how it reads that back.
#include <map>
#include <set>

#include "core/torch/guards/content.h"
#include "core/torch/record/session.h"
#include "core/torch/world/world.h"

namespace backplane::capture {

using cpython::Ref;

PyObject* World::read_back(const Effects::Found& found, PyObject* missing_error, PyObject* key) {
  if (found.value) return Py_NewRef(found.value);
  PyErr_SetObject(missing_error, key);
  return nullptr;
}

// A write through one path must not be one to what was read by another.
void World::guard_written() {
  guards::Sources& sources = guards_.sources();
  std::map<PyTypeObject*, std::set<SourceId>> groups;  // of what may be one object
  const auto path_to = [this](PyObject* object, SourceId source) {
    const auto place = places_.find(object);
    return place == places_.end() ? source : place->second;
  };
  for (const Effect& effect : effects_.all()) {
    PyObject* owner = effect.owner.get();
    SourceId source = source_of(owner);
    if (source == kNoSource) source = sources.add(SourceKind::kConstant, kNoSource, owner);
    groups[Py_TYPE(owner)].insert(path_to(owner, source));
    if (effect.kind != EffectKind::kAttribute || effect.place == owner) continue;
    groups[&PyDict_Type].insert(places_.at(effect.place));
  }
  if (groups.empty()) return;
  for (const auto& [object, known] : known_) {
    const auto group = groups.find(Py_TYPE(object));
    if (known.source != kNoSource && group != groups.end())
      group->second.insert(path_to(object, known.source));
  }
  for (const auto& [type, group] : groups)
    if (group.size() > 1)
      guards_.guard_all_distinct(std::vector<SourceId>(group.begin(), group.end()));
}

void World::guard_place(PyObject* dict, SourceId path) {
  if (const SourceId known = source_of(dict); known != kNoSource && known != path)
    guards_.guard_same(known, path);
  const auto [first, fresh] = places_.emplace(dict, path);
  if (!fresh && first->second != path) guards_.guard_same(first->second, path);
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

std::size_t World::operators_called() { return record::Session::current()->tape.calls.size(); }

bool World::may_write() {
  if (writes_forbidden_) stop("the program changes what is outside while it holds a lock");
  return !writes_forbidden_;
}

bool World::write(EffectKind kind, PyObject* owner, PyObject* key, PyObject* value,
                  PyObject* place) {
  PyObject* before = nullptr;
  if (kind == EffectKind::kCell)
    before = PyCell_GET(place);
  else if (key && PyDict_Check(place))
    before = PyDict_GetItemWithError(place, key);
  if (before && before != value && has_finalizer(Py_TYPE(before))) {
    stop(std::string("the program lets go of a ") + Py_TYPE(before)->tp_name +
         ", whose __del__ would run later");
    return false;
  }
  if (!may_write()) return false;
  if (place != owner && PyDict_Check(place)) {
    SourceId source = source_of(owner);
    if (source == kNoSource)
      source = guards_.sources().add(SourceKind::kConstant, kNoSource, owner);
    guard_place(place, guards_.sources().add(SourceKind::kInstanceDict, source, nullptr));
  } else if (const SourceId source = source_of(place); source != kNoSource && PyDict_Check(place)) {
    guard_place(place, source);
  }
  effects_.write(kind, owner, key, value, place, operators_called());
  return !stopped();
}

bool World::append(PyObject* list, PyObject* value) {
  if (may_write()) effects_.append(list, value, operators_called());
  return !stopped();
}

void World::note_iterated(PyObject* object) {
  PyObject* read = guards::shows_mapping(object) ? guards::mapping_of(object) : object;
  if (is_outside(read)) iterated_.insert(read);
}

// A list from outside as the program sees it: a copy from its first change on.
PyObject* World::changed_list(PyObject* list) {
  if (!may_write()) return nullptr;
  if (PyObject* known = effects_.find_list(list)) return known;
  if (is_iterated(list))
    return stop("the program changes a list from outside that it iterates over");
  const Ref copy = Ref::steal(copy_list(list));
  if (!copy || !effects_.replace_list(list, copy.get(), operators_called())) return nullptr;
  return effects_.find_list(list);
}

PyObject* World::seen_list(PyObject* object) {
  if (PyObject* known = effects_.find_list(object)) return known;
  return effects_.has_appended(object) ? changed_list(object) : nullptr;
}

}  // namespace backplane::capture
