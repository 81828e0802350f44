// Rows whose elements lie apart while neighbouring rows lie side by side, as in a softmax over the
// first dim: read and written several at a time, so that memory is walked in its own order.
#pragma once

#include "kernels/rows/block.h"

namespace backplane::onednn {

inline constexpr std::int64_t kStagedRows = kLanes;

struct RowStage {
  std::int64_t length = 0;   // elements of a row
  std::int64_t element = 4;  // bytes of one in a register
  std::int64_t step = 0;     // bytes between the elements of a row in memory

  // Bytes from one staged row to the next: whole lanes, and not a power of two, which would put all
  // rows into the same few lines of the cache.
  std::int64_t pitch() const { return (length + kLanes - 1) / kLanes * kLanes * element + 64; }
  std::int64_t bytes() const { return kStagedRows * pitch(); }
  // Of the next `rows` rows from `from` on.
  void fill(std::byte* stage, const std::byte* from, LoadFunction load, std::int64_t rows) const;
  void spill(std::byte* to, const std::byte* stage, StoreFunction store, std::int64_t rows) const;
};

}  // namespace backplane::onednn
