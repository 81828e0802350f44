// Which functions written in C a program under capture may call, and on what terms.
#pragma once

#include <Python.h>

#include <cstdint>

namespace backplane::capture {

enum class CFunctionKind : std::uint8_t {
  kUnknown,   // ends the capture
  kPure,      // depends on its arguments alone and changes none
  kOperator,  // of PyTorch, on tensors
  kReader,    // a method that leaves its object as it is
  kWriter,    // a method that may change its object
  kSwitch,    // of the thread; the recording notes how it is left
  kInferenceMode,  // torch.is_inference_mode_enabled: a recording runs outside of it
  kGetattr,   // what follows is done by the interpreter itself
  kHasattr,
  kSetattr,
  kDelattr,
  kNext,
  kIter,
  kLen,
  kId,
  kHash,
  kVars,
  kLocals,
  kFind,        // object.__getattribute__
  kStore,       // object.__setattr__ and __delattr__
  kMake,        // type.__call__
  kLock,        // a method of a lock
  kFillsFirst,  // changes its first argument
};

// `callable` is a PyCFunction, a method or slot of a class written in C, or one bound to an object.
// `out_self`: the object it is bound to, borrowed, or null.
CFunctionKind classify(PyObject* callable, PyObject*& out_self);

// Whether making an instance of the class has no effect outside of it.
bool is_constructible(PyTypeObject* type);

// For messages: "builtins.print". Empty where unknown.
const char* c_name(PyObject* callable);

}  // namespace backplane::capture
