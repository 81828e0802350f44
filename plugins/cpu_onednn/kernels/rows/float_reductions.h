// Reductions of floats by vector kernels: null where those do not suit the plan.
#pragma once

#include <backplane/sdk/program.hpp>

#include <memory>

#include "kernels/rows/reduction_plan.h"

namespace backplane::onednn {

enum class FloatReduction : std::uint8_t { kSum, kMean, kMax, kMin, kLength };

std::unique_ptr<sdk::Kernel> make_float_reduction(const ReductionPlan& plan, FloatReduction kind);

}  // namespace backplane::onednn
