// The special methods of a class: what C code asks it for by itself. Which of them there are
// decides what an operator, a built-in function or PyTorch does.
#pragma once

#include <Python.h>

#include <vector>

#include "core/cpython/bytecode/py_ref.h"

namespace backplane::guards {

// Of one class as it was, with those of its bases.
class SpecialMethods {
 public:
  explicit SpecialMethods(PyTypeObject* type);

  // Whether the class has the same ones still.
  bool are_those_of(PyTypeObject* type) const;
  void show_refs(cpython::OwnedRefs& out) const { out.show(methods_); }

 private:
  std::vector<cpython::Ref> methods_;  // by name; null where there is none
  bool is_abstract_;
};

}  // namespace backplane::guards
