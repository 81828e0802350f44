// Gradients of convolutions' weights on CPUs: each is a dot product of a channel of the results'
// gradient with a channel of the image, shifted by its tap. Both lie in rows of one pitch.
#pragma once

#include <functional>

#include "planes.hpp"

namespace backplane::kernels {

struct WindowGradient {
  Window window;
  TensorView image, gradient;  // [N, channels, height, width]: what was convolved, of the results
  std::int64_t groups = 1;
  // Stores the results: `value` at axes (group, channel of results in it, channel of the image in
  // it, tap).
  std::function<Status(Draft& draft, Expr value, const Indices& axes)> store;
};

bool suits_window_gradient(const Builder& builder, const WindowGradient& gradient);
Status add_window_gradient(Builder& builder, const WindowGradient& gradient);

}  // namespace backplane::kernels
