// Products of one matrix with many of few columns, on CPUs: those lie side by side, so that tiles
// run on from one to the next and leave no vectors part empty.
#pragma once

#include "gemm_text.hpp"

namespace backplane::kernels {

// Whether the first batch dim is all that there is, counts matrices with dense rows, and tiles of
// `joined` over all columns compute clearly less than tiles of `apart` over those of each.
bool suits_side_by_side(const Gemm& gemm, const Tile& apart, const Tile& joined);

// The right factor in panels of `width` columns.
RightFactor pack_side_by_side(Builder& builder, const Gemm& gemm, std::int64_t width);

}  // namespace backplane::kernels
