// Sums of columns over many rows, as short sums of sums: one float that takes all rows loses a
// digit for each ten times as many.
#pragma once

#include <algorithm>

#include "kernels/simd/row_loops.h"

namespace backplane::onednn {

class ColumnRuns {
 public:
  // `total` and `run` hold n floats each.
  ColumnRuns(float* total, float* run, std::int64_t n) : total_(total), run_(run), n_(n) {
    std::fill(total, total + n, 0.0F);
    std::fill(run, run + n, 0.0F);
  }

  // Where the next row is to be added.
  float* next() {
    if (rows_++ == kRows) finish();
    return run_;
  }
  void finish() {
    row_loops().add_row(total_, run_, 1, n_);
    std::fill(run_, run_ + n_, 0.0F);
    rows_ = 1;
  }

 private:
  static constexpr std::int64_t kRows = 512;
  float *total_, *run_;
  std::int64_t n_, rows_ = 0;
};

}  // namespace backplane::onednn
