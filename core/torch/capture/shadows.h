// Attributes that the program sets on objects from outside while it is captured. The objects stay
// as they are: what was set is kept here, and read from here.
#pragma once

#include <Python.h>
//
#include <unordered_map>
#include <vector>

#include "core/cpython/bytecode/py_ref.h"

namespace backplane::capture {

class Shadows {
 public:
  // Null: deleted.
  void set(PyObject* owner, PyObject* name, PyObject* value);
  bool has(PyObject* owner) const { return by_owner_.count(owner) != 0; }
  // Whether the attribute was set; `out_value`, borrowed, is null where it was deleted.
  bool find(PyObject* owner, PyObject* name, PyObject*& out_value) const;
  struct Shadow {
    cpython::Ref owner, name, value;
  };
  const std::vector<Shadow>& all() const { return shadows_; }

 private:
  std::vector<Shadow> shadows_;
  std::unordered_map<PyObject*, std::vector<std::size_t>> by_owner_;
};

}  // namespace backplane::capture
