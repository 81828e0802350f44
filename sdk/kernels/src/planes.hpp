// Images in padded rows, for convolutions on CPUs that read them where they lie: per channel one
// plane for each phase of the stride, in rows of one pitch that holds results and padding alike. A
// tap of the window reads every position's element at one distance from the position. Small images,
// of which that would be padding for the most part, lie there once for each tap instead, side by
// side.
#pragma once

#include "builder.hpp"

namespace backplane::kernels {

struct Window {
  Shape kernel, stride, padding, dilation;
  std::size_t rank() const { return kernel.size(); }
};

// `given` numbers for the `rank` dims of a window: one serves all, none is `fallback`.
inline Shape per_dim(Shape given, std::size_t rank, std::int64_t fallback) {
  if (given.empty()) given.push_back(fallback);
  if (given.size() == 1) given.resize(rank, given[0]);
  return given;
}

// Of an image [N, channels, …]: height and width, or whatever dims it has.
inline Shape spatial(const TensorView& image) { return {image.dims.begin() + 2, image.dims.end()}; }

struct Planes {
  // Big enough for every tap of the window at `out` positions; planes follow each other densely, by
  // image, channel and phase.
  static Planes for_image(const Window& window, const Shape& out, std::int64_t channels);

  // One dense plane of all images for each tap.
  static Planes for_taps(const Window& window, const Shape& out, std::int64_t images);
  // Whether most of the planes is padding.
  bool is_sparse() const { return out[0] * out[1] * 2 < plane; }

  // Of results, those between them and behind a row's last included.
  std::int64_t positions() const { return by_tap ? plane : (out[0] - 1) * pitch + out[1]; }
  // Elements from a position to what the tap (ky, kx) reads there, as text.
  std::string shift(const Window& window, const std::string& ky, const std::string& kx) const;

  TensorView view;
  Shape out;
  std::int64_t rows = 0, pitch = 0;
  std::int64_t plane = 0;                          // elements
  std::int64_t phase = 0, channel = 0, image = 0;  // strides, in elements; by_tap: a tap's phase
  bool by_tap = false;
};

// Writes `image` [N, channels, height, width] in float32 into memory of the call with the strides
// of `planes`, which gets the view; `size` elements, all of which are written.
Status fill_planes(Builder& builder, const TensorView& image, const Window& window,
                   std::int64_t size, Planes& planes);

}  // namespace backplane::kernels
