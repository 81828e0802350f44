// Resampling along one dim as PyTorch does it: which points a result is made of, with which
// weights; and for gradients, which results a point goes into.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace backplane::sdk {

enum class Resampling : std::uint8_t { kNearest, kNearestExact, kLinear };

// The weights sum to 1; nearest results have the first point alone.
struct ResampledFrom {
  std::int64_t first = 0, second = 0;
  float first_weight = 1, second_weight = 0;
};

// Whether PyTorch takes nearest points by the sizes alone where these are equal or doubled,
// whatever the scale that is given: in images of two dims, and in volumes of more than three
// channels that lie channels-last. Of its gradients: always.
inline bool is_nearest_by_size(std::size_t dims, std::int64_t channels, bool is_channels_last) {
  return dims == 2 || (dims == 3 && channels > 3 && is_channels_last);
}

// For each of `out` results of `in` points. `scale` is the operator's, 0 where none is given.
// Positions are computed in float, like PyTorch's for float32 and narrower types: they decide
// which points are taken. `by_size`: see is_nearest_by_size.
inline std::vector<ResampledFrom> resample(Resampling method, std::int64_t in, std::int64_t out,
                                           bool align_corners, double scale, bool by_size = true) {
  const bool linear = method == Resampling::kLinear;
  float step = scale > 0 ? static_cast<float>(1.0 / scale)
                         : static_cast<float>(in) / static_cast<float>(out);
  if (linear && align_corners)
    step = out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0F;
  const auto below = [in](float x) {
    return x < static_cast<float>(in - 1) ? static_cast<std::int64_t>(std::floor(x)) : in - 1;
  };
  std::vector<ResampledFrom> all(static_cast<std::size_t>(out));
  for (std::int64_t i = 0; i < out; ++i) {
    ResampledFrom& from = all[static_cast<std::size_t>(i)];
    const auto at = static_cast<float>(i);
    if (method == Resampling::kNearestExact) {
      from.first = below((at + 0.5F) * step);
    } else if (in == out && (linear || by_size)) {
      from.first = from.second = i;
      continue;
    } else if (!linear) {
      from.first = out == 2 * in && by_size ? i / 2 : below(at * step);
    } else {
      const float x = std::max(align_corners ? step * at : step * (at + 0.5F) - 0.5F, 0.0F);
      from.first = below(x);
      from.second_weight = std::clamp(x - static_cast<float>(from.first), 0.0F, 1.0F);
      from.first_weight = 1 - from.second_weight;
    }
    from.second = linear ? std::min(from.first + 1, in - 1) : from.first;
  }
  return all;
}

// Of one point: the results [first, first + count); the weight of the first is weights[weights_at].
struct ResampledInto {
  std::int64_t first = 0, count = 0;
  std::size_t weights_at = 0;
};
struct ResamplingReaders {
  std::vector<ResampledInto> points;
  std::vector<float> weights;
};
// Positions ascend with the results, so the readers of a point are neighbours.
inline ResamplingReaders transposed(const std::vector<ResampledFrom>& results, std::int64_t in) {
  ResamplingReaders all{std::vector<ResampledInto>(static_cast<std::size_t>(in)), {}};
  for (std::size_t i = 0; i < results.size(); ++i)
    for (const std::int64_t at : {results[i].first, results[i].second}) {
      ResampledInto& into = all.points[static_cast<std::size_t>(at)];
      const auto result = static_cast<std::int64_t>(i);
      if (into.count == 0) into.first = result;
      into.count = result + 1 - into.first;
    }
  for (std::size_t p = 0; p < all.points.size(); ++p) {
    all.points[p].weights_at = all.weights.size();
    for (std::int64_t k = 0; k < all.points[p].count; ++k) {
      const ResampledFrom& from = results[static_cast<std::size_t>(all.points[p].first + k)];
      const auto at = static_cast<std::int64_t>(p);
      all.weights.push_back((from.first == at ? from.first_weight : 0.0F) +
                            (from.second == at ? from.second_weight : 0.0F));
    }
  }
  return all;
}

}  // namespace backplane::sdk
