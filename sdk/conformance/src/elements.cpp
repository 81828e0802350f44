#include "sdk/conformance/src/elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include <backplane/sdk/testing/host_tensor.hpp>

namespace backplane::conformance {

namespace {

using ir::DType;
using sdk::testing::detail::decode_float;
using sdk::testing::detail::encode_float;

template <class T>
T load(const std::uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void store(std::uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

double from_brain(std::uint16_t brain) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(brain) << 16);
}

DType part_type(DType dtype) {
  switch (dtype) {
    case DType::kComplex32:
      return DType::kFloat16;
    case DType::kComplex64:
      return DType::kFloat32;
    case DType::kComplex128:
      return DType::kFloat64;
    default:
      return dtype;
  }
}

double read_part(DType dtype, const std::uint8_t* at) {
  switch (dtype) {
    case DType::kFloat16:
      return decode_float(load<std::uint16_t>(at), 10, 5);
    case DType::kBFloat16:
      return from_brain(load<std::uint16_t>(at));
    case DType::kFloat32:
      return load<float>(at);
    case DType::kFloat64:
      return load<double>(at);
    case DType::kInt8:
      return load<std::int8_t>(at);
    case DType::kInt16:
      return load<std::int16_t>(at);
    case DType::kInt32:
      return load<std::int32_t>(at);
    case DType::kInt64:
      return static_cast<double>(load<std::int64_t>(at));
    case DType::kUInt8:
    case DType::kBool:
      return *at;
    case DType::kUInt16:
      return load<std::uint16_t>(at);
    case DType::kUInt32:
      return load<std::uint32_t>(at);
    case DType::kUInt64:
      return static_cast<double>(load<std::uint64_t>(at));
    default:
      return 0;
  }
}

void write_part(DType dtype, std::uint8_t* at, double number) {
  switch (dtype) {
    case DType::kFloat16:
      return store(at, static_cast<std::uint16_t>(encode_float(number, 10, 5)));
    case DType::kBFloat16:
      return store(at, static_cast<std::uint16_t>(encode_float(number, 7, 8)));
    case DType::kFloat32:
      return store(at, static_cast<float>(number));
    case DType::kFloat64:
      return store(at, number);
    case DType::kBool:
      return store(at, static_cast<std::uint8_t>(number != 0));
    case DType::kUInt64:
      return store(at, static_cast<std::uint64_t>(number));
    default: {  // little-endian: the low bytes
      const auto whole = static_cast<std::int64_t>(number);
      std::memcpy(at, &whole, static_cast<std::size_t>(ir::dtype_bytes(dtype)));
    }
  }
}
void write_random(DType dtype, std::uint8_t* at, std::mt19937& generator) {
  const double number = static_cast<double>(generator() % 17) / 8 - 1;
  if (ir::is_float(dtype)) return write_part(dtype, at, number);
  write_part(dtype, at, static_cast<double>(generator() % (dtype == DType::kBool ? 2 : 4)));
}

double tolerance(DType dtype) {
  switch (part_type(dtype)) {
    case DType::kFloat16:
      return 1e-2;
    case DType::kBFloat16:
      return 5e-2;
    case DType::kFloat32:
      return 1e-4;
    case DType::kFloat64:
      return 1e-9;
    default:
      return 0;
  }
}

}  // namespace

void fill_random(DType dtype, std::span<std::uint8_t> memory, std::mt19937& generator) {
  std::ranges::fill(memory, std::uint8_t{0});
  const DType part = part_type(dtype);
  const auto bytes = static_cast<std::size_t>(ir::dtype_bytes(part));
  for (std::size_t at = 0; at + bytes <= memory.size(); at += bytes)
    write_random(part, memory.data() + at, generator);
}

std::vector<std::uint8_t> make_dense(DType dtype, const std::uint8_t* data,
                                     std::span<const std::int64_t> dims,
                                     std::span<const std::int64_t> strides) {
  const std::int64_t bytes = ir::dtype_bytes(dtype);
  std::vector<std::uint8_t> out;
  for_each_offset(dims, strides, [&](std::int64_t, std::int64_t offset) {
    const std::uint8_t* const element = data + offset * bytes;
    out.insert(out.end(), element, element + bytes);
  });
  return out;
}

FloatFormat float_format(DType dtype) {
  const auto of = [](int mantissa, int exponent) {
    const int least = 2 - (1 << (exponent - 1)), most = 1 - least;
    return FloatFormat{std::ldexp(1.0, -mantissa - 1), std::ldexp(1.0, least - mantissa),
                       std::ldexp(1.0, least), std::ldexp(2 - std::ldexp(1.0, -mantissa), most)};
  };
  switch (part_type(dtype)) {
    case DType::kFloat16:
      return of(10, 5);
    case DType::kBFloat16:
      return of(7, 8);
    case DType::kFloat64:
      return of(52, 11);
    default:
      return of(23, 8);
  }
}

Number read_number(DType dtype, const std::uint8_t* element) {
  const DType part = part_type(dtype);
  Number out{read_part(part, element), 0};
  if (part != dtype) out.imaginary = read_part(part, element + ir::dtype_bytes(part));
  return out;
}

void write_number(DType dtype, std::uint8_t* element, const Number& number) {
  const DType part = part_type(dtype);
  write_part(part, element, number.real);
  if (part != dtype) write_part(part, element + ir::dtype_bytes(part), number.imaginary);
}

std::string print_number(DType dtype, const Number& number) {
  char text[64];
  if (ir::is_complex(dtype))
    std::snprintf(text, sizeof text, "%.6g%+.6gi", number.real, number.imaginary);
  else
    std::snprintf(text, sizeof text, "%.6g", number.real);
  return text;
}

std::uint64_t checksum(std::span<const std::uint8_t> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

Difference compare(DType dtype, std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  Difference out;
  const double allowed = tolerance(dtype);
  const auto add = [&](double x, double y) {
    if (x == y || (std::isnan(x) && std::isnan(y))) return;
    const double absolute = std::fabs(x - y);
    if (!std::isfinite(absolute)) {
      out = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity(),
             false};
      return;
    }
    const double magnitude = std::max(std::fabs(x), std::fabs(y));
    out.absolute = std::max(out.absolute, absolute);
    out.relative = std::max(out.relative, absolute / magnitude);
    if (absolute > allowed * std::max(magnitude, 1.0)) out.within = false;
  };
  const auto bytes = static_cast<std::size_t>(ir::dtype_bytes(dtype));
  for (std::size_t at = 0; at + bytes <= std::min(a.size(), b.size()); at += bytes) {
    const Number x = read_number(dtype, a.data() + at), y = read_number(dtype, b.data() + at);
    add(x.real, y.real);
    add(x.imaginary, y.imaginary);
  }
  if (a.size() != b.size()) out.within = false;
  return out;
}

}  // namespace backplane::conformance
