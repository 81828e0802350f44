// Halves on a host whose compiler may have none. Goes before the text of kernels as well.
#pragma once

#include <math.h>  // NOLINT(modernize-deprecated-headers): for C++ texts without std

static inline double emulated_from_half(unsigned short bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size = exponent == 31  ? (fraction == 0 ? HUGE_VAL : (double)NAN)
                      : exponent == 0 ? ldexp(fraction, -24)
                                      : ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

// Rounds to nearest, ties to even.
static inline unsigned short emulated_to_half(double value) {
  const double beyond = 65520;  // rounds to infinity
  const unsigned sign = signbit(value) ? 0x8000U : 0;
  const double size = fabs(value);
  if (value != value) return 0x7e00;
  if (size >= beyond) return (unsigned short)(sign | 0x7c00U);
  if (size == 0) return (unsigned short)sign;
  int exponent = 0;
  frexp(size, &exponent);
  const int step = exponent - 11 > -24 ? exponent - 11 : -24;  // the least bit
  const unsigned units = (unsigned)nearbyint(ldexp(size, -step));
  const unsigned bits = step == -24 ? units : units + ((unsigned)(step + 24) << 10);
  return (unsigned short)(sign | bits);
}
