#include "tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace backplane::onednn {

std::optional<Type> type_of(bp_dtype dtype) {
  using namespace sdk;
  if (dtype == kFloat32) return Type::kF32;
  if (dtype == kBFloat16) return Type::kBF16;
  if (dtype == kFloat16) return Type::kF16;
  if (dtype == kFloat64) return Type::kF64;
  if (dtype == kInt64) return Type::kI64;
  if (dtype == kInt32) return Type::kI32;
  if (dtype == kInt16) return Type::kI16;
  if (dtype == kInt8) return Type::kI8;
  if (dtype == kUInt8) return Type::kU8;
  if (dtype == kBool) return Type::kBool;
  return std::nullopt;
}

Type known_type(bp_dtype dtype) {
  const auto type = type_of(dtype);
  if (!type) throw std::invalid_argument("an element type that the claims exclude");
  return *type;
}

std::int64_t bytes_of(Type type) {
  return with_type(type, [](auto v) { return static_cast<std::int64_t>(sizeof v); });
}

Type promote(Type a, Type b) {
  if (a == b) return a;
  if (is_float(a) || is_float(b)) {
    if (!is_float(b)) return a;
    if (!is_float(a)) return b;
    if (a == Type::kF64 || b == Type::kF64) return Type::kF64;
    return Type::kF32;  // also float16 with bfloat16
  }
  if (a == Type::kBool) return b;
  if (b == Type::kBool) return a;
  if (a == Type::kU8 || b == Type::kU8) {
    const Type other = a == Type::kU8 ? b : a;
    return other == Type::kI8 ? Type::kI16 : other;
  }
  return bytes_of(a) >= bytes_of(b) ? a : b;
}

float to_float(BFloat16 v) { return std::bit_cast<float>(std::uint32_t{v.bits} << 16); }

BFloat16 to_bfloat16(float v) {
  if (std::isnan(v)) return {0x7fc0};
  const auto bits = std::bit_cast<std::uint32_t>(v);
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

float to_float(Float16 v) {
  const std::uint32_t sign = (v.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (v.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = v.bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return sign ? -magnitude : magnitude;
}

Float16 to_float16(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const auto with_sign = [&](std::uint32_t m) {
    return Float16{static_cast<std::uint16_t>(sign | m)};
  };
  if (magnitude > 0x7f800000u) return with_sign(0x7e00);
  if (magnitude >= 0x477ff000u) return with_sign(0x7c00);  // rounds to infinity
  if (magnitude < 0x38800000u) {                           // subnormal: let the adder round
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return with_sign(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u);
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23);
  return with_sign(rounded >> 13);
}

std::int64_t product(std::span<const std::int64_t> dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

Shape broadcast_strides(const sdk::TensorSpec& spec, const Shape& dims) {
  if (spec.rank() > dims.size()) throw std::logic_error("a tensor of more dims than it is read by");
  Shape out(dims.size(), 0);
  const std::size_t lead = dims.size() - spec.rank();
  for (std::size_t d = 0; d < spec.rank(); ++d)
    out[lead + d] = spec.dims[d] == 1 ? 0 : spec.strides[d];
  return out;
}

Walk::Walk(Shape over, std::vector<Shape> of) : dims(std::move(over)), strides(std::move(of)) {
  for (const Shape& s : strides)
    if (s.size() != dims.size()) throw std::logic_error("a walk by strides of other dims");
  // Dims of size 1 carry nothing.
  for (std::size_t d = dims.size(); d-- > 0;) {
    if (dims[d] != 1) continue;
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(d));
    for (Shape& s : strides) s.erase(s.begin() + static_cast<std::ptrdiff_t>(d));
  }
}

void Walk::sort_by(std::size_t which) {
  std::vector<std::size_t> order(dims.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return strides[which][a] > strides[which][b];
  });
  const auto permute = [&](const Shape& in) {
    Shape out;
    out.reserve(in.size());
    for (std::size_t d : order) out.push_back(in[d]);
    return out;
  };
  dims = permute(dims);
  for (Shape& s : strides) s = permute(s);
  merge();
}

void Walk::merge() {
  for (std::size_t d = dims.size(); d-- > 1;) {
    const bool dense = std::all_of(strides.begin(), strides.end(),
                                   [&](const Shape& s) { return s[d - 1] == s[d] * dims[d]; });
    if (!dense) continue;
    dims[d - 1] *= dims[d];
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(d));
    for (Shape& s : strides) {
      s[d - 1] = s[d];
      s.erase(s.begin() + static_cast<std::ptrdiff_t>(d));
    }
  }
}

}  // namespace backplane::onednn
