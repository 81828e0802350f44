// The functions that exist once per instruction set.
#pragma once

#include "kernels/rows/block.h"

namespace backplane::onednn {

// target[m, n] (+)= left[m, k] * right[k, n]. `right` and `target` are row-major; an element of
// `left` is at i * left_row + p * left_column. Columns up to the next multiple of kLanes are read
// from `right` and written to `target`.
template <class T>
struct GemmArgs {
  T* target;
  std::int64_t target_row;
  const T* left;
  std::int64_t left_row, left_column;
  const T* right;
  std::int64_t right_row;
  std::int64_t m, n, k;
  bool accumulate;
};

struct VectorTable {
  const char* name;
  BlockFunction (*find)(Opcode op);  // of floats; null where there is none
  // By the C library's vector mathematics, null also where this machine's has none.
  BlockFunction (*find_in_library)(Opcode op);
  BlockFunction (*find_doubles_in_library)(Opcode op);
  LoadFunction load_bf16, load_bool;
  StoreFunction store_bf16, store_bool;
  void (*gemm)(const GemmArgs<float>& args);
  void (*gemm_f64)(const GemmArgs<double>& args);
  void (*gemm_i64)(const GemmArgs<std::int64_t>& args);
  // sums[i] += row[i], and products[i] += row[i] * (other[i] - mean) * scale. products may be null.
  void (*add_columns)(float* sums, float* products, const float* row, const float* other,
                      float mean, float scale, std::int64_t n);
};

// Of the instruction set in use.
const VectorTable& vector_table();
// Those of the instruction set in use and of lesser ones, for tests. Null beyond the last.
const VectorTable* runnable_table(std::size_t i);

extern const VectorTable kVectorAvx512, kVectorAvx2, kVectorBaseline;

}  // namespace backplane::onednn
