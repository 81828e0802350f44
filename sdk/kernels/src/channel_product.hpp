// Convolutions of which each result has one channel of the image (depthwise): blocks of rows, so
// that a vector of the image serves every row that some tap reads it for.
#pragma once

#include <array>
#include <string>

#include "window_product.hpp"

namespace backplane::kernels {

struct ChannelProduct {
  std::string text;
  std::array<std::size_t, 3> items;
};

bool suits_channel_product(const WindowProduct& product);
// `planes` are those of images, not of taps; up to sixteen elements behind them are read.
// `sums` as in DeviceFacts::product_sums.
ChannelProduct print_channel_product(const WindowProduct& product, const Taps& weight,
                                     const Planes& planes, const Draft& epilogue,
                                     std::int64_t sums);

}  // namespace backplane::kernels
