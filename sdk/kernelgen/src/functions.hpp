// Texts that printed kernels are made from: types, memory access, mathematical functions.
#pragma once

#include <backplane/kernelgen/kernel.hpp>

#include <string>
#include <string_view>

namespace backplane::kernelgen {

// Own functions in float32, branch-free, one text for scalars and vectors. Error bounds (ULP, over
// all floats unless said; math_test.cpp checks them):
//   exp 1.5, expm1 2, log 1.5, log1p 2.5, tanh 3, sigmoid 3.5, erf 8
bool is_own_function(Op op);
std::string_view own_function_name(Op op);
// All of them, for one width.
std::string own_functions(std::int64_t lanes);
// Of the vendor's or C's library, for float32 or float64.
std::string_view library_function(Op op, Type type, Dialect dialect);

std::string type_name(Type type, std::int64_t lanes);

}  // namespace backplane::kernelgen
