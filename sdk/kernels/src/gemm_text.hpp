// The text of a product's kernel.
#pragma once

#include "gemm.hpp"

namespace backplane::kernels {

// What a work-item computes: rows times vectors of `lanes` columns.
struct Tile {
  std::int64_t rows, vectors, lanes;
  std::int64_t columns() const { return vectors * lanes; }
};

// The right factor as the kernel reads it.
struct RightFactor {
  enum Kind {
    kPanels,  // packed: [batch, panels, depth, the tile's columns]
    kRows,    // as it lies, columns next to each other; tiles divide it
    kColumns  // as it lies, each column along the depth: dot products, for float32 rows that lie so
  };
  Kind kind = kPanels;
  Argument argument;
  Shape batch_strides;
  std::int64_t stride = 0;    // elements between rows, or between columns; of panels: not used
  bool side_by_side = false;  // panels run on through the first batch dim, the only one
  std::int64_t at_once = 1;   // columns of kColumns that are summed beside each other
};

// `left` is a plain tensor; `lane_axis` the axis of `epilogue` that counts columns.
kernelgen::Printed print_product(const Gemm& gemm, const Tile& tile, const Factor& left,
                                 const RightFactor& right, const Draft& epilogue,
                                 std::int64_t lane_axis);

}  // namespace backplane::kernels
