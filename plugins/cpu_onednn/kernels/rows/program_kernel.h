// Kernels made of a row program: groups of pointwise nodes, optionally with row reductions.
#pragma once

#include "kernels/rows/emitter.h"

namespace backplane::onednn {

// Of a step whose nodes all have a program op. Results must all have the dims of the widest value,
// or be one value a row.
sdk::Result<std::unique_ptr<sdk::Kernel>> make_program_kernel(const sdk::StepContext& context);

}  // namespace backplane::onednn
