// Convolutions on CPUs as products that read the image where it lies: columns of a panel are
// positions next to each other in padded rows, so every tap of the window reads whole vectors.
#pragma once

#include <functional>
#include <optional>

#include "planes.hpp"

namespace backplane::kernels {

// A weight as products read it, element by element: strides in elements, and where the first is.
struct Taps {
  TensorView tensor;
  std::int64_t group = 0, row = 0, channel = 0;
  Shape tap;
  std::int64_t first = 0;
};

struct WindowProduct {
  Window window;
  TensorView image;                        // [N, channels, height, width]
  std::int64_t groups = 1, out_width = 1;  // channels of results of a group
  Taps weight;                             // in float32 it is read where it lies
  Shape out{};                             // height and width of the results
  // Stores the results: `value` at axes (image, group, channel, y, x).
  std::function<Status(Draft& draft, Expr value, const Indices& axes)> store{};
};

bool can_be_window_product(const Builder& builder, const WindowProduct& product);
Status add_window_product(Builder& builder, const WindowProduct& product);

}  // namespace backplane::kernels
