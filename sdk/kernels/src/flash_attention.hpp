// Attention as one kernel: products by the threads of warps, an online softmax, no scores in
// memory.
#pragma once

#include <optional>

#include "builder.hpp"

namespace backplane::kernels {

struct Attention {
  TensorView query, key, value;  // [batch, heads, rows, depth]; keys and values may share heads
  std::optional<TensorView> mask;
  bool causal = false;
  double scale = 1;
  std::int64_t batch = 0, heads = 0, queries = 0, keys = 0, depth = 0, values = 0;
  kernelgen::Type type = kernelgen::Type::kF32;
};

// `sums`: of each row the logarithm of its sum, where it is wanted. False: not for these shapes,
// dtypes or this device.
Result<bool> add_flash_attention(Builder& builder, const Attention& attention,
                                 const TensorView& result, const std::optional<TensorView>& sums);

struct AttentionGradients {
  TensorView grad, out, sums;                   // read
  std::optional<TensorView> query, key, value;  // written, where they are wanted
};
// The same in every run: no sum depends on the order of blocks. False: as above.
Result<bool> add_flash_gradients(Builder& builder, const Attention& attention,
                                 const AttentionGradients& gradients);
// Whether it takes a node's gradients where heads share keys, which nothing else does.
bool takes_shared_gradients(const Facts& facts, const sdk::NodeView& node);

}  // namespace backplane::kernels
