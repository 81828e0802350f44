// Attention by the threads of warps, in CUDA C: functions that kernels call, with what they rely
// on.
#pragma once

#include <backplane/kernelgen/kernel.hpp>

#include <string>

namespace backplane::kernels {

// Tiles in shared memory, their products, masks: what both directions are made of.
std::string attention_words();
// bp_attend<bp_forward_cut<type, padded depth, tiles of 16 rows per warp, keys at a time, buffers
// of keys and values, is causal, mask>>(const bp_attention&, shared memory of the cut's kBytes), by
// the cut's kThreads.
std::string forward_attention_text();
// bp_go_back<bp_backward_cut<…, mask, rows are keys>>(const bp_attention_gradients&, …): gradients
// of queries, or of keys and values.
std::string backward_attention_text();

}  // namespace backplane::kernels
