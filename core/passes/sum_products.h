// Turns a sum of matrix products of small depth, as the gradient of a weight that every step of a
// recurrent layer uses, into one product of the concatenated factors. The order of summation
// changes, and so does rounding.
#pragma once

#include "core/ir/graph.h"

namespace backplane::passes {
Status sum_products(ir::Graph& graph);
}  // namespace backplane::passes
