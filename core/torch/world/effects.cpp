#include "core/torch/world/effects.h"

#include <algorithm>
#include <utility>

#include "core/torch/world/world.h"

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

}  // namespace

PyObject* dict_of(PyObject* object) {
  if (PyType_Check(object)) return nullptr;
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict ? *dict : nullptr;
}

void Effects::write(EffectKind kind, PyObject* owner, PyObject* key, PyObject* value,
                    PyObject* place, std::size_t operators) {
  const auto found = std::find_if(effects_.rbegin(), effects_.rend(), [&](const Effect& known) {
    return known.place == place && same_key(known.key.get(), key);
  });
  // Between a deletion and a new value lies the order of a dict's keys.
  if (found != effects_.rend() && found->value && value) {
    if (found->operators != operators) found->earlier = std::move(found->value);
    found->value = Ref::borrow(value);
    found->operators = operators;
    return;
  }
  effects_.push_back(
      {kind, Ref::borrow(owner), Ref::borrow(key), Ref::borrow(value), place, operators, {}});
}

Effects::Found Effects::find(const PyObject* place, PyObject* key) const {
  const auto found = std::find_if(effects_.rbegin(), effects_.rend(), [&](const Effect& known) {
    return known.place == place && same_key(known.key.get(), key);
  });
  if (found == effects_.rend()) return {};
  return {true, found->value.get()};
}

bool Effects::has(EffectKind kind) const {
  return std::ranges::any_of(effects_, [&](const Effect& known) { return known.kind == kind; });
}

PyObject* Effects::find_list(const PyObject* list) const {
  const auto found = std::ranges::find_if(effects_, [&](const Effect& known) {
    return known.kind == EffectKind::kList && known.place == list;
  });
  return found == effects_.end() ? nullptr : found->value.get();
}

void Effects::append(PyObject* list, PyObject* value, std::size_t operators) {
  effects_.push_back(
      {EffectKind::kAppend, Ref::borrow(list), {}, Ref::borrow(value), list, operators, {}});
}

bool Effects::has_appended(const PyObject* list) const {
  return std::ranges::any_of(effects_, [&](const Effect& known) {
    return known.kind == EffectKind::kAppend && known.place == list;
  });
}

bool Effects::replace_list(PyObject* list, PyObject* copy, std::size_t operators) {
  std::vector<Effect> others;
  for (Effect& effect : effects_) {
    if (effect.kind != EffectKind::kAppend || effect.place != list)
      others.push_back(std::move(effect));
    else if (PyList_Append(copy, effect.value.get()) != 0)
      return false;
  }
  effects_ = std::move(others);
  effects_.push_back(
      {EffectKind::kList, Ref::borrow(list), {}, Ref::borrow(copy), list, operators, {}});
  return true;
}

bool Effects::touches(PyObject* object) const {
  if (effects_.empty()) return false;
  PyObject* dict = dict_of(object);
  return std::ranges::any_of(effects_, [&](const Effect& known) {
    return known.place == object || known.owner.get() == object || (dict && known.place == dict);
  });
}

}  // namespace backplane::capture
