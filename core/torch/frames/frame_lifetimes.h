// Whose end the program may see: by a finalizer or a weak reference.
#pragma once

#include <Python.h>

#include <unordered_set>

#include "core/torch/interpret/interpreter.h"

namespace backplane::call {

// At a break. What the program has made and shown to nobody ends unseen, and tensors are memory
// first; all else has to live as long as the program's own frame would hold it.
class VisibleEnds {
 public:
  explicit VisibleEnds(capture::Interpreter& interpreter);

  bool has(PyObject* object) const;  // null: has none

 private:
  capture::World& world_;
  // Of the program's own: what the breaking instruction gets to see.
  std::unordered_set<PyObject*> shown_;
};

}  // namespace backplane::call
