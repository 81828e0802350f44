// Planes and windows, with fewer than three spatial dimensions padded in front.
#pragma once

#include <array>

#include "kernels/frame.h"

namespace backplane::reference {

using std::int64_t;
using Triple = std::array<int64_t, 3>;

inline Triple triple(const Shape& v, std::size_t first, int64_t missing) {
  Triple t{missing, missing, missing};
  const std::size_t n = v.size() - first;
  for (std::size_t i = 0; i < n; ++i) t[3 - n + i] = v[first + i];
  return t;
}

struct Planes {
  Planes(const Shape& in_dims, const Shape& out_dims, int64_t spatial)
      : in(triple(in_dims, in_dims.size() - static_cast<std::size_t>(spatial), 1)),
        out(triple(out_dims, out_dims.size() - static_cast<std::size_t>(spatial), 1)) {
    for (std::size_t i = 0; i + static_cast<std::size_t>(spatial) < in_dims.size(); ++i)
      count *= in_dims[i];
  }
  int64_t in_size() const { return in[0] * in[1] * in[2]; }
  int64_t out_size() const { return out[0] * out[1] * out[2]; }
  int64_t count = 1;  // batch times channels
  Triple in, out;
};

struct Window {
  Window(const Frame& f, int64_t spatial)
      : kernel(triple(f.ints("kernel_size", spatial, 1), 0, 1)),
        stride(f.ints("stride").empty() ? kernel : triple(f.ints("stride", spatial, 1), 0, 1)),
        padding(triple(f.ints("padding", spatial, 0), 0, 0)),
        dilation(triple(f.ints("dilation", spatial, 1), 0, 1)) {}
  Triple kernel, stride, padding, dilation;
};

}  // namespace backplane::reference
