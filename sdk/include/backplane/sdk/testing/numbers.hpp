// Numbers to test with, and how far results are from what they should be.
#pragma once

#include <backplane/sdk/testing/host_tensor.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace backplane::sdk::testing {

inline Floats random_floats(std::int64_t count, unsigned seed = 1) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  Floats out(static_cast<std::size_t>(count));
  for (float& v : out) v = values(generator);
  return out;
}

inline float round_to_bf16(float value) {
  return static_cast<float>(detail::decode_float(detail::encode_float(value, 7, 8), 7, 8));
}
inline Floats rounded(Floats values) {
  for (float& v : values) v = round_to_bf16(v);
  return values;
}

// Largest difference, relative to the largest expected value.
inline double difference(const Floats& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return 1e9;
  double worst = 0, scale = 1e-30;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - want[i]);
    worst = std::isnan(d) ? 1e9 : std::max(worst, d);
    scale = std::max(scale, std::abs(want[i]));
  }
  return worst / scale;
}

}  // namespace backplane::sdk::testing
