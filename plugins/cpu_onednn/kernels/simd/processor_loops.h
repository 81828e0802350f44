// Loops written once as plain C++ and compiled for every instruction set: a body that is inlined
// into functions with different targets is vectorised there.
#pragma once

#include <bit>
#include <limits>
#include <string_view>

#include "kernels/simd/vector_table.h"

// Of a body's run() and all that it calls.
#define BP_LOOP [[gnu::always_inline]] inline static

namespace backplane::onednn {

template <class Body, class... Args>
struct ProcessorLoop {
  using Function = void (*)(Args...);
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")]] static void
  avx512(Args... args) {
    Body::run(args...);
  }
  [[gnu::target("avx2,fma")]] static void avx2(Args... args) { Body::run(args...); }
  static void baseline(Args... args) { Body::run(args...); }

  static Function pick() {
    const std::string_view name = vector_table().name;
    return name == "avx512" ? avx512 : name == "avx2" ? avx2 : baseline;
  }
};

namespace detail {
template <class Body, class... Args>
ProcessorLoop<Body, Args...> loop_of(void (*)(Args...));
}  // namespace detail

// Body::run for the processor that runs this.
template <class Body>
auto processor_loop() {
  return decltype(detail::loop_of<Body>(&Body::run))::pick();
}

// Elements as floats, in forms that the compiler vectorises.
struct Lane {
  BP_LOOP float read(float v) { return v; }
  BP_LOOP float read(BFloat16 v) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(v.bits) << 16);
  }
  BP_LOOP void write(float& to, float v) { to = v; }
  BP_LOOP void write(BFloat16& to, float v) {  // as to_bfloat16
    const auto bits = std::bit_cast<std::uint32_t>(v);
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    to.bits = static_cast<std::uint16_t>(v != v ? 0x7fc0U : rounded);
  }
};

}  // namespace backplane::onednn
