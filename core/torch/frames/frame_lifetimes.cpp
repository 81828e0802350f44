#include "core/torch/frames/frame_lifetimes.h"

#include <vector>

#include "core/torch/guards/tensor_match.h"

namespace backplane::call {

namespace {

bool ends_unseen(PyObject* object) {
  return capture::is_primitive(object) || capture::is_fixed(object) || guards::is_tensor(object);
}

}  // namespace

VisibleEnds::VisibleEnds(capture::Interpreter& interpreter) : world_(interpreter.world()) {
  std::vector<PyObject*> pending;
  for (const cpython::Ref& value : interpreter.root().slots)
    if (value) pending.push_back(value.get());
  while (!pending.empty()) {
    PyObject* next = pending.back();
    pending.pop_back();
    if (ends_unseen(next) || world_.is_outside(next) || !shown_.insert(next).second) continue;
    if (PyFunction_Check(next)) {  // not its globals, through which it sees everything
      for (PyObject* part : {PyFunction_GET_CLOSURE(next), PyFunction_GET_DEFAULTS(next),
                             PyFunction_GET_KW_DEFAULTS(next)})
        if (part) pending.push_back(part);
      continue;
    }
    if (!PyObject_IS_GC(next) || !Py_TYPE(next)->tp_traverse) continue;
    Py_TYPE(next)->tp_traverse(
        next,
        [](PyObject* referent, void* found) {
          static_cast<std::vector<PyObject*>*>(found)->push_back(referent);
          return 0;
        },
        &pending);
  }
}

bool VisibleEnds::has(PyObject* object) const {
  if (!object || ends_unseen(object)) return false;
  if (world_.is_outside(object) || shown_.count(object) != 0) return true;
  return PyCell_Check(object) && has(PyCell_GET(object));
}

}  // namespace backplane::call
