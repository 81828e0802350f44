// The op table's ShapeRules, checked. Shapes only; types must be valid already.
#pragma once

#include "core/base/status.h"
#include "core/ir/dim_algebra.h"
#include "core/ir/graph.h"

namespace backplane::ir {

// The message says what the rule expected; the caller adds the node.
Status check_shape_rule(const Graph& graph, const DimAlgebra& algebra, const Node& node);

}  // namespace backplane::ir
