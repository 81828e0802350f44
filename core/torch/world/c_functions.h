// Which functions written in C a program under capture may call, and on what terms.
#pragma once

#include <Python.h>

#include <cstdint>

namespace backplane::capture {

enum class CFunctionKind : std::uint8_t {
  kUnknown,        // ends the capture
  kPure,           // depends on its arguments alone and changes none
  kOfClass,        // likewise, and on no more of them than their classes and identity
  kState,          // answers for a switch, which no program under capture sets
  kOperator,       // of PyTorch, on tensors
  kReader,         // a method that leaves its object as it is
  kWriter,         // a method that may change its object
  kSwitch,         // of the thread; the recording notes how it is left
  kInferenceMode,  // torch.is_inference_mode_enabled: a recording runs outside of it
  kGetattr,        // what follows is done by the interpreter itself
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

// What a function or a class in C does with the objects that it gets.
enum class CUse : std::uint8_t {
  kReads,      // looks at all there is
  kHandsOn,    // takes the pieces of containers and hands them on
  kKeeps,      // keeps its arguments as they are; takes the pieces of its object
  kKeepsByKey  // likewise, but looks at its first argument
};
// Of methods that kReader and kWriter stand for.
CUse use_of_method(const char* name, PyObject* self);
CUse use_of_class(PyTypeObject* type);
// Whether an iterator of the class looks at what it comes upon, with a function or by itself: map.
bool reads_as_it_goes(PyTypeObject* type);
// Whether the method looks into what the container `self`, the program's own, holds.
bool reads_own_items(const char* name);

// Whether making an instance of the class has no effect outside of it.
bool is_constructible(PyTypeObject* type);

// For messages: "builtins.print". Empty where unknown.
const char* c_name(PyObject* callable);

}  // namespace backplane::capture
