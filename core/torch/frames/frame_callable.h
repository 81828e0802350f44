// The objects that modified code calls: `__compiled_fn_0` and `__resume_at_34_1`.
#pragma once

#include <Python.h>
//
#include <functional>
#include <string>

namespace backplane::call {

// Gives a new reference, or null with a Python error set.
using FrameFunction = std::function<PyObject*(PyObject* const* values, std::size_t count)>;

// A new callable that takes positional arguments; its repr is its name. Null with an error set.
PyObject* make_frame_callable(std::string name, FrameFunction function);

}  // namespace backplane::call
