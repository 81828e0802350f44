// Functions behind functools.lru_cache: what the cache has is found by calling them, as the program
// itself would find it.
#pragma once

#include <Python.h>

#include <utility>

#include "core/cpython/bytecode/py_ref.h"

namespace backplane::guards {

// A call of a cached function: `arguments` is a tuple of a tuple, and of a dict of keywords or
// None.
struct CachedCall {
  cpython::Ref function, arguments;

  explicit operator bool() const { return static_cast<bool>(function); }
};

// Of functools.lru_cache and functools.cache.
bool is_cached_function(PyObject* object);

// What the cache has; null without an error where it has nothing. Runs no code of the program, not
// even for a key. Needs the GIL, as all here.
cpython::Ref find_cached(PyObject* function, PyObject* arguments);
// Calls it; null with the error set.
cpython::Ref call_cached(const CachedCall& call);

}  // namespace backplane::guards
