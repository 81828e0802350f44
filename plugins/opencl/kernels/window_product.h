// Convolutions on CPUs as products that read the image where it lies: columns of a panel are
// positions next to each other in padded rows, so every tap of the window reads whole vectors.
#pragma once

#include <functional>

#include "kernels/builder.h"

namespace backplane::opencl {

struct Window {
  Shape kernel, stride, padding, dilation;
  std::size_t rank() const { return kernel.size(); }
};

struct WindowProduct {
  Window window;
  TensorView image;                        // [N, channels, height, width]
  std::int64_t groups = 1, out_width = 1;  // channels of results of a group
  Shape out;                               // height and width of the results
  // Element of the weight: group, channel of results within it, channel of the image within it
  // times taps plus tap.
  std::function<Expr(Draft& draft, Expr group, Expr row, Expr column)> weight;
  // The weight as [groups, channels of results, the rest], where it lies densely so.
  std::optional<TensorView> rows;
  // Stores the results: `value` at axes (image, group, channel, y, x).
  std::function<Status(Draft& draft, Expr value, const Indices& axes)> store;
};

bool suits_window_product(const Builder& builder, const WindowProduct& product);
Status add_window_product(Builder& builder, const WindowProduct& product);

}  // namespace backplane::opencl
