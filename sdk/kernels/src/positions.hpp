// Positions that kernels read from index tensors.
#pragma once

#include <backplane/sdk/indexing.hpp>

#include "builder.hpp"

namespace backplane::kernels {

// An index from memory, brought inside: a kernel reads nothing beyond its tensors, whatever the
// indices are. One out of range fails the call. `wraps`: negative ones count from the end.
Expr position(Draft& draft, Expr raw, std::int64_t size, bool wraps = false);

// Fills the indexed dims of `at`, a place in a tensor of `dims`. `shared` are indices of what the
// index tensors broadcast to.
Status positions(Builder& builder, Draft& draft, const sdk::IndexedDims& indexed,
                 const Indices& shared, const Shape& dims, Indices& at);

}  // namespace backplane::kernels
