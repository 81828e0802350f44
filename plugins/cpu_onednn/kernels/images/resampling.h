// What resampling and its gradients share: how images lie in memory, and the tables of both dims.
#pragma once

#include <backplane/sdk/resampling.hpp>

#include "kernels/images/channels_last.h"
#include "kernels/rows/float_rows.h"

namespace backplane::onednn {

// [N, C, rows, columns] or [N, C, columns] as planes of rows of columns of `channels` elements:
// channels-last memory is a plane an image, other memory a plane a channel.
struct Image {
  std::int64_t planes, channels, in_rows = 1, in_columns, out_rows = 1, out_columns;

  // In the order of memory of `leader`; `in` is the image, `out` what it is resampled to.
  Image(const sdk::TensorSpec& leader, const Shape& in, const Shape& out)
      : channels(in.size() == 4 && channels_inside(leader) ? in[1] : 1),
        in_columns(in.back()),
        out_columns(out.back()) {
    planes = in[0] * in[1] / channels;
    if (in.size() < 4) return;
    in_rows = in[2];
    out_rows = out[2];
  }
  // Strides of that order; row-major where empty.
  Shape order(const Shape& dims) const {
    return channels > 1 ? channels_last_order(dims) : Shape{};
  }
};

// Along rows (dim 0) or columns (1); backward, the image is the result.
inline std::vector<sdk::ResampledFrom> resampled(const sdk::StepContext& context,
                                                 sdk::Resampling method, std::size_t dim,
                                                 bool backward = false) {
  const Shape &operand = context.operand(0).dims, &result = context.result().dims;
  const Shape &in = backward ? result : operand, &out = backward ? operand : result;
  if (in.size() == 3 && dim == 0) return std::vector<sdk::ResampledFrom>(1);
  const char* name = in.size() == 3 ? "scales" : dim == 0 ? "scales_h" : "scales_w";
  const std::size_t at = in.size() - 2 + dim;
  return sdk::resample(method, in[at], out[at], context.node().bool_or("align_corners", false),
                       context.node().real_or(name, 0), backward || in.size() == 4);
}

inline std::int64_t whole_lanes(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

}  // namespace backplane::onednn
