// What decides how scaled_dot_product_attention computes.
#pragma once

#include <ATen/Context.h>

#include <cstdint>

namespace backplane::bridge {

constexpr std::uint8_t kEveryAttention = 31;

// The kinds that torch.nn.attention.sdpa_kernel() switches, as bits.
inline std::uint8_t allowed_attention() {
  const at::Context& context = at::globalContext();
  return static_cast<std::uint8_t>(
      context.userEnabledFlashSDP() | (context.userEnabledMemEfficientSDP() << 1) |
      (context.userEnabledMathSDP() << 2) | (context.userEnabledCuDNNSDP() << 3) |
      (context.userEnabledOverrideableSDP() << 4));
}

}  // namespace backplane::bridge
