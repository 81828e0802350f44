// Loops of the backward kernels that exist once per instruction set. Memory is floats but where
// it is said otherwise.
#pragma once

#include <cstdint>

namespace backplane::onednn {

// One row of a norm whose statistics span the row. Null pointers: weight 1, sums not wanted.
struct NormRow {
  const float *grad, *input, *weight;
  float mean, rstd;
  std::int64_t n;
  float* grad_sums;   // [i] += grad[i]
  float* scale_sums;  // [i] += grad[i] * (input[i] - mean) * rstd
};
// Sums over the row of g = grad * weight.
struct RowSums {
  float grad, product;  // of g, and of g * (input - mean)
};

struct RowLoops {
  RowSums (*norm_sums)(const NormRow& row);
  // target = a * grad * weight + b * (input - mean) + c
  void (*norm_apply)(float* target, const NormRow& row, float a, float b, float c);
  // Without an input (null) just a * grad: what would be multiplied by b = 0 may be no number.
  // Planes: the same without weight; like columns, of floats [0] or of bfloat16 throughout [1].
  RowSums (*plane_sums[2])(const void* grad, const void* input, float mean, std::int64_t n);
  void (*plane_apply[2])(void* target, const void* grad, const void* input, float mean, float a,
                         float b, float c, std::int64_t n);
  // Columns with statistics of their own: grads += grad, products += grad * (input - mean).
  void (*column_sums[2])(float* grads, float* products, const void* grad, const void* input,
                         const float* mean, std::int64_t n);
  // target = a * grad + b * (input - mean) + c, everything per column; a * grad without an input.
  void (*column_apply[2])(void* target, const void* grad, const void* input, const float* mean,
                          const float* a, const float* b, const float* c, std::int64_t n);
  // target += source * factor
  void (*add_row)(float* target, const float* source, float factor, std::int64_t n);
  // target = source * factor
  void (*scale_row)(float* target, const float* source, float factor, std::int64_t n);
  // row = exp(row - shift)
  void (*shifted_exp)(float* row, float shift, std::int64_t n);
  // target = p * (target - shift)
  void (*softmax_slope)(float* target, const float* p, float shift, std::int64_t n);
  float (*dot)(const float* a, const float* b, std::int64_t n);
};

// Of the instruction set in use: the counterpart of vector_table().
const RowLoops& row_loops();

extern const RowLoops kBackwardAvx512, kBackwardAvx2, kBackwardBaseline;

}  // namespace backplane::onednn
