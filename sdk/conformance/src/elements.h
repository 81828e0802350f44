// Elements of tensors as numbers: random inputs, checksums, comparison.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/ir/types.h"

namespace backplane::conformance {

// Fills a tensor's memory: multiples of 1/8 in [-1, 1] for floats, 0 to 3 for integers, bools.
void fill_random(ir::DType dtype, std::span<std::uint8_t> memory, std::mt19937& generator);

// A tensor's elements in row-major order, as bytes without gaps.
std::vector<std::uint8_t> make_dense(ir::DType dtype, const std::uint8_t* data,
                                     std::span<const std::int64_t> dims,
                                     std::span<const std::int64_t> strides);
// Calls `body(number of the element, its offset in elements)` in row-major order.
template <class Body>
void for_each_offset(std::span<const std::int64_t> dims, std::span<const std::int64_t> strides,
                     Body&& body) {
  std::int64_t count = 1;
  for (const std::int64_t dim : dims) count *= dim;
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t offset = 0, rest = n;
    for (std::size_t d = dims.size(); d-- > 0; rest /= dims[d])
      offset += rest % dims[d] * strides[d];
    body(n, offset);
  }
}

// Of a floating-point type, or of the parts of a complex one.
struct FloatFormat {
  double unit;                             // half the distance from 1 to the next number
  double smallest, least_normal, largest;  // magnitudes; the first is below the normal ones
};
FloatFormat float_format(ir::DType dtype);

// Real and imaginary part of one element.
struct Number {
  double real = 0, imaginary = 0;
};
Number read_number(ir::DType dtype, const std::uint8_t* element);
// Rounded to the element type; what does not fit an integer is undefined.
void write_number(ir::DType dtype, std::uint8_t* element, const Number& number);
std::string print_number(ir::DType dtype, const Number& number);

// FNV-1a.
std::uint64_t checksum(std::span<const std::uint8_t> bytes);

struct Difference {
  double absolute = 0, relative = 0;  // the largest; relative to the larger magnitude
  bool within = true;                 // the tolerance of the element type
};
// Of two dense tensors of one type. Not-a-numbers are equal to each other and to nothing else.
Difference compare(ir::DType dtype, std::span<const std::uint8_t> a,
                   std::span<const std::uint8_t> b);

}  // namespace backplane::conformance
