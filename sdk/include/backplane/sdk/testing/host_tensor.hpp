// A tensor in host memory, with any strides and of any element type, and its values as numbers.
#pragma once

#include <backplane/sdk/program.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

namespace backplane::sdk::testing {

using Shape = std::vector<std::int64_t>;
using Floats = std::vector<float>;

namespace detail {

// A float of `mantissa` stored bits and `exponent` bits, rounded once to nearest even.
inline std::uint32_t encode_float(double value, int mantissa, int exponent) {
  const int bias = (1 << (exponent - 1)) - 1;
  const std::uint32_t sign = std::signbit(value) ? 1U << (mantissa + exponent) : 0;
  const std::uint32_t infinity = ((1U << exponent) - 1) << mantissa;
  if (std::isnan(value)) return sign | infinity | 1U << (mantissa - 1);
  const double size = std::abs(value);
  if (size == 0) return sign;
  if (std::isinf(size)) return sign | infinity;
  const int at = std::max(std::ilogb(size), 1 - bias);
  // Rounding up to the next power of two carries into the exponent's bits, and to infinity.
  const auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, mantissa - at)));
  const std::uint32_t bits = (static_cast<std::uint32_t>(at + bias - 1) << mantissa) + steps;
  return sign | std::min(bits, infinity);
}
inline double decode_float(std::uint32_t bits, int mantissa, int exponent) {
  const int bias = (1 << (exponent - 1)) - 1;
  const auto fraction = static_cast<double>(bits & ((1U << mantissa) - 1));
  const int at = static_cast<int>(bits >> mantissa & ((1U << exponent) - 1));
  double size = 0;
  if (at == (1 << exponent) - 1)
    size = fraction == 0 ? std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  else if (at == 0)
    size = std::ldexp(fraction, 1 - bias - mantissa);
  else
    size = std::ldexp(fraction + std::ldexp(1.0, mantissa), at - bias - mantissa);
  return bits >> (mantissa + exponent) != 0 ? -size : size;
}

// Calls `body` with a value of the C++ type that holds an element, and how many bits its mantissa
// and exponent have where no C++ type does.
template <class Body>
void with_storage(bp_dtype dtype, Body&& body) {
  if (dtype == kFloat32) return body(float{}, 0, 0);
  if (dtype == kFloat64) return body(double{}, 0, 0);
  if (dtype == kFloat16) return body(std::uint16_t{}, 10, 5);
  if (dtype == kBFloat16) return body(std::uint16_t{}, 7, 8);
  if (dtype == kInt64) return body(std::int64_t{}, 0, 0);
  if (dtype == kInt32) return body(std::int32_t{}, 0, 0);
  if (dtype == kInt16) return body(std::int16_t{}, 0, 0);
  if (dtype == kInt8) return body(std::int8_t{}, 0, 0);
  if (dtype == kUInt8 || dtype == kBool) return body(std::uint8_t{}, 0, 0);
  throw std::invalid_argument("elements of this type have no number; use the tensor's memory");
}

}  // namespace detail

inline double element_value(bp_dtype dtype, const std::byte* at) {
  double value = 0;
  detail::with_storage(dtype, [&]<class T>(T stored, int mantissa, int exponent) {
    std::memcpy(&stored, at, sizeof stored);
    if constexpr (std::is_same_v<T, std::uint16_t>)
      value = detail::decode_float(stored, mantissa, exponent);
    else
      value = static_cast<double>(stored);
  });
  return value;
}
inline void set_element(bp_dtype dtype, std::byte* at, double value) {
  detail::with_storage(dtype, [&]<class T>(T stored, int mantissa, int exponent) {
    if constexpr (std::is_same_v<T, std::uint16_t>)
      stored = static_cast<T>(detail::encode_float(value, mantissa, exponent));
    else
      stored = static_cast<T>(value);
    std::memcpy(at, &stored, sizeof stored);
  });
}

class HostTensor {
 public:
  // Behind the tensor, never to be written.
  static constexpr std::size_t kGuardBytes = 64;

  explicit HostTensor(TensorSpec spec, std::byte fill = std::byte{0xff}) : spec_(std::move(spec)) {
    if (spec_.strides.empty()) spec_.strides = row_major(spec_.dims);
    memory_.assign(bytes() + kGuardBytes, fill);
  }
  HostTensor(bp_dtype dtype, Shape dims, Shape strides = {})
      : HostTensor(TensorSpec{dtype, std::move(dims), std::move(strides)}) {}

  const TensorSpec& spec() const { return spec_; }
  std::size_t bytes() const { return static_cast<std::size_t>(spec_.span_bytes()); }
  std::byte* data() { return memory_.data(); }
  const std::byte* data() const { return memory_.data(); }

  // Numbers in row-major order, whatever the strides; fewer than there are elements come again.
  template <class T>
  void set_values(const std::vector<T>& values) {
    std::size_t i = 0;
    for_each_offset([&](std::size_t at) {
      set_element(spec_.dtype, data() + at, static_cast<double>(values[i++ % values.size()]));
    });
  }
  template <class T = float>
  std::vector<T> values() const {
    std::vector<T> out;
    for_each_offset([&](std::size_t at) {
      out.push_back(static_cast<T>(element_value(spec_.dtype, data() + at)));
    });
    return out;
  }
  // Elements as they lie in memory; those past the tensor's end are not taken.
  template <class T>
  void set_memory(const std::vector<T>& elements) {
    const std::size_t given = std::min(elements.size() * sizeof(T), bytes());
    if (given != 0) std::memcpy(data(), elements.data(), given);
  }
  template <class T>
  std::vector<T> memory() const {
    std::vector<T> out(bytes() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), data(), out.size() * sizeof(T));
    return out;
  }
  // `body(offset in bytes)` of each element, in row-major order.
  template <class Body>
  void for_each_offset(Body&& body) const {
    const std::int64_t count = spec_.elements();
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t offset = 0, rest = i;
      for (std::size_t d = spec_.rank(); d-- > 0; rest /= spec_.dims[d])
        offset += rest % spec_.dims[d] * spec_.strides[d];
      body(static_cast<std::size_t>(offset * element_bytes(spec_.dtype)));
    }
  }

 private:
  TensorSpec spec_;
  std::vector<std::byte> memory_;
};

}  // namespace backplane::sdk::testing
