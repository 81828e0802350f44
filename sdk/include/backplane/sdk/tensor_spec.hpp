// Tensors at known sizes, and where in another one a view of it starts.
#pragma once

#include <backplane/sdk/graph.hpp>

#include <algorithm>
#include <numeric>
#include <vector>

namespace backplane::sdk {

// A tensor at known sizes. Strides in elements; meaningless for an opaque layout.
struct TensorSpec {
  bp_dtype dtype{};
  std::vector<std::int64_t> dims, strides;
  bp_layout layout{BP_LAYOUT_STRIDED, 0, 0};

  std::size_t rank() const { return dims.size(); }
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (std::int64_t d : dims) n *= d;
    return n;
  }
  // Bytes from the first to past the last element.
  std::int64_t span_bytes() const {
    std::int64_t last = 0;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (dims[i] == 0) return 0;
      last += (dims[i] - 1) * strides[i];
    }
    return (last + 1) * element_bytes(dtype);
  }
  // Row-major without gaps; dims of size 1 have any stride, as in PyTorch.
  bool contiguous() const {
    std::int64_t expected = 1;
    for (std::size_t i = dims.size(); i-- > 0;) {
      if (dims[i] == 1) continue;
      if (strides[i] != expected) return dims.empty() || elements() == 0;
      expected *= dims[i];
    }
    return true;
  }
};

inline std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& dims) {
  std::vector<std::int64_t> strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::int64_t>(dims[i], 1);
  return strides;
}

// A dim that may count from the end; the one of a tensor of rank 0 is 0.
inline std::int64_t wrap_dim(std::int64_t dim, std::size_t rank) {
  return dim < 0 ? dim + static_cast<std::int64_t>(std::max<std::size_t>(rank, 1)) : dim;
}

// Elements from the start of `in`, a value at known sizes, to the start of `view`, which is one of
// it. Where `in` has been given other strides than `in_value`'s own, the same element is meant.
inline std::int64_t view_offset(const ValueView& view, const TensorSpec& in,
                                const ValueView& in_value, const Dims& dims) {
  std::int64_t rest = dims(view.alias_offset());
  const std::vector<std::int64_t> strides = dims(in_value.strides());
  if (strides == in.strides) return rest;
  std::vector<std::size_t> order(strides.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return strides[a] > strides[b]; });
  std::int64_t offset = 0;
  for (const std::size_t d : order) {
    if (strides[d] == 0 || in.dims[d] < 2) continue;
    const std::int64_t index = std::min(rest / strides[d], in.dims[d] - 1);
    rest -= index * strides[d];
    offset += index * in.strides[d];
  }
  return offset;
}

}  // namespace backplane::sdk
