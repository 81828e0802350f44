// SymInts of a traced graph as text over dim class names, for ir::DimProgram.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "core/base/status.h"

namespace backplane::fx {

// A sympy expression: integers, symbols, + * // % ^ min max. Anything else is unsupported.
Result<std::string> print_sympy(const pybind11::handle& expression);

}  // namespace backplane::fx
