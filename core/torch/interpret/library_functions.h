// Python functions of PyTorch and the standard library that a capture does in its own way, and what
// may be asked of objects without their address coming out.
#pragma once

#include <Python.h>

#include <cstdint>

namespace backplane::capture {

enum class LibraryFunction : std::uint8_t {
  kNone,           // interpreted as it is
  kIsCompiling,    // torch.compiler.is_compiling: libraries ask before they look at values
  kTensorHash,     // torch.Tensor.__hash__, called by name
  kWithoutDynamo,  // switches TorchDynamo off and calls what it wraps
  kPattern,        // re._compile: has a cache, and works on bytes of its own
  kDispatch,       // functools.singledispatch's: which function is for a class
  kCheckpoint,     // torch.utils.checkpoint.checkpoint: what to keep is the compiler's choice
};
LibraryFunction classify_library_function(PyObject* function);

// Whether the frame, borrowed, uses id() only to tell objects apart: the module copy, and the hash
// of a tensor.
bool only_compares_addresses(PyFrameObject* frame);

// The hash, or the text, is made of the content alone.
bool hashes_the_same(PyObject* object);
bool prints_the_same(PyObject* object);

}  // namespace backplane::capture
