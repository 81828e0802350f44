// What a reduction reduces.
#pragma once

#include <backplane/sdk/program.hpp>

#include "tensor.h"

namespace backplane::onednn {

// A reduction as kept dims and reduced dims of one operand.
struct ReductionPlan {
  Shape kept, kept_from, kept_to;  // sizes; strides in the operand and in the result
  Shape reduced, reduced_from;
  std::int64_t count = 1;  // of reduced elements
  Type from = Type::kF32, to = Type::kF32;
  Type as = Type::kF32;  // what elements are converted to first; `from` but for sums and products
};

ReductionPlan reduction_plan(const sdk::StepContext& context, std::size_t result = 0);
// Of sums and products: of elements of the result's type.
ReductionPlan converting_plan(const sdk::StepContext& context);

}  // namespace backplane::onednn
