#include "core/torch/capture/shadows.h"

namespace backplane::capture {

void Shadows::set(PyObject* owner, PyObject* name, PyObject* value) {
  std::vector<std::size_t>& own = by_owner_[owner];
  for (const std::size_t i : own)
    if (PyUnicode_Compare(shadows_[i].name.get(), name) == 0) {
      shadows_[i].value = cpython::Ref::borrow(value);
      return;
    }
  own.push_back(shadows_.size());
  shadows_.push_back(
      {cpython::Ref::borrow(owner), cpython::Ref::borrow(name), cpython::Ref::borrow(value)});
}

bool Shadows::find(PyObject* owner, PyObject* name, PyObject*& out_value) const {
  const auto own = by_owner_.find(owner);
  if (own == by_owner_.end()) return false;
  for (const std::size_t i : own->second)
    if (PyUnicode_Compare(shadows_[i].name.get(), name) == 0) {
      out_value = shadows_[i].value.get();
      return true;
    }
  return false;
}

}  // namespace backplane::capture
