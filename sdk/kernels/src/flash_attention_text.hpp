// Attention by the threads of warps, in CUDA C: functions that kernels call.
#pragma once

#include <backplane/kernelgen/kernel.hpp>

#include <string>

namespace backplane::kernels {

// bp_attend<bp_forward_cut<type, padded depth, tiles of 16 rows per warp, keys at a time, buffers
// of keys and values, is causal, mask>>(const bp_attention&, shared memory of the cut's kBytes), by
// the cut's kThreads.
std::string forward_attention_text();

}  // namespace backplane::kernels
