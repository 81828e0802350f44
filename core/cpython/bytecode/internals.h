// CPython's code objects and frames as its own evaluator sees them; no public header has them.
// Include after every other header: these define names of their own.
#pragma once

#define Py_BUILD_CORE
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#pragma GCC diagnostic pop
#undef Py_BUILD_CORE
