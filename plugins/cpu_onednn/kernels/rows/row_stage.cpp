#include "kernels/rows/row_stage.h"

#include <algorithm>
#include <cstring>

#include "kernels/simd/processor_loops.h"

namespace backplane::onednn {
namespace {

// A square of elements, turned.
template <class Bits>
struct Turn {
  BP_LOOP void run(std::byte* target, std::int64_t pitch, const Bits* square) {
    for (std::int64_t r = 0; r < kStagedRows; ++r) {
      auto* to = reinterpret_cast<Bits*>(target + r * pitch);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < kStagedRows; ++i) to[i] = square[i * kStagedRows + r];
    }
  }
};

}  // namespace

void RowStage::fill(std::byte* stage, const std::byte* from, LoadFunction load,
                    std::int64_t rows) const {
  with_size(element, [&](auto sample) {
    using Bits = decltype(sample);
    const auto turn = processor_loop<Turn<Bits>>();
    alignas(64) Bits square[kStagedRows * kStagedRows] = {};
    for (std::int64_t i = 0; i < length; i += kStagedRows) {
      const std::int64_t n = std::min(kStagedRows, length - i);
      for (std::int64_t k = 0; k < n; ++k)
        load(square + k * kStagedRows, from + (i + k) * step, 1, rows);
      turn(stage + i * element, pitch(), square);  // a pitch is whole lanes
    }
  });
}

void RowStage::spill(std::byte* to, const std::byte* stage, StoreFunction store,
                     std::int64_t rows) const {
  with_size(element, [&](auto sample) {
    using Bits = decltype(sample);
    const auto turn = processor_loop<Turn<Bits>>();
    alignas(64) Bits rows_of[kStagedRows * kStagedRows], square[kStagedRows * kStagedRows];
    for (std::int64_t i = 0; i < length; i += kStagedRows) {
      for (std::int64_t r = 0; r < kStagedRows; ++r)
        std::memcpy(rows_of + r * kStagedRows, stage + r * pitch() + i * element,
                    sizeof(Bits) * kStagedRows);
      turn(reinterpret_cast<std::byte*>(square), kStagedRows * element, rows_of);
      const std::int64_t n = std::min(kStagedRows, length - i);
      for (std::int64_t k = 0; k < n; ++k)
        store(to + (i + k) * step, 1, square + k * kStagedRows, rows);
    }
  });
}

}  // namespace backplane::onednn
