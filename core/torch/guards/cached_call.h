// Functions behind functools.lru_cache: what the cache has is found by calling them, as the program
// itself would find it. `arguments` is a tuple of a tuple, and of a dict of keywords or None.
#pragma once

#include <Python.h>

#include "core/cpython/bytecode/py_ref.h"

namespace backplane::guards {

// Of functools.lru_cache and functools.cache.
bool is_cached_function(PyObject* object);

// What the cache has; null without an error where it has nothing. Runs no code of the program, not
// even for a key. Needs the GIL, as all here.
cpython::Ref find_cached(PyObject* function, PyObject* arguments);
// Calls it; null with the error set.
cpython::Ref call_cached(PyObject* function, PyObject* arguments);

}  // namespace backplane::guards
