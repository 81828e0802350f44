// Positions that kernels read from index tensors.
#pragma once

#include <backplane/sdk/indexing.hpp>

#include "kernels/builder.h"

namespace backplane::opencl {

// An index from memory, negative ones counted from the end, brought inside: a kernel reads nothing
// beyond its tensors, whatever the indices are.
Expr position(Draft& draft, Expr raw, std::int64_t size);

// Fills the indexed dims of `at`, a place in a tensor of `dims`. `shared` are indices of what the
// index tensors broadcast to.
Status positions(Builder& builder, Draft& draft, const sdk::IndexedDims& indexed,
                 const Indices& shared, const Shape& dims, Indices& at);

}  // namespace backplane::opencl
