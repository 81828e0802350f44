// Shared by the kernels that are made of products.
#pragma once

#include "gemm.hpp"

namespace backplane::kernels {

// Stores a product's value, or what the nodes after it in the step make of it.
Status finish_product(Builder& builder, Draft& draft, Expr value, const Indices& axes);

// A tensor whose leading dims are all rows of a matrix.
Factor factor_of_rows(const TensorView& tensor);

}  // namespace backplane::kernels
