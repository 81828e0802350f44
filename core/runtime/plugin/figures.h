// Sizes that plugins answer: refused where no machine has so much, before anything is computed with
// them.
#pragma once

#include <backplane/base.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace backplane::runtime {

// More than any address space holds; thousands of such sizes still have a sum in 64 bits.
inline constexpr std::uint64_t kBytesLimit = std::uint64_t{1} << 52;

inline constexpr std::size_t kRequirementLimit = std::size_t{1} << 20;  // of a text, in bytes

// `call`: "plugin 'acme' (acme:0): executable_describe (aten.mm)".
inline Status check_bytes(const std::string& call, std::string_view figure, std::uint64_t bytes) {
  if (bytes <= kBytesLimit) [[likely]]
    return {};
  return {Code::kInternal, call + " answered " + std::string(figure) + " " + std::to_string(bytes) +
                               ", expected at most " + std::to_string(kBytesLimit) + " bytes"};
}

// From one element of an array to the next.
inline Status check_stride(const std::string& call, std::string_view figure, std::size_t stride,
                           std::size_t first_size) {
  if (stride >= first_size && stride <= BP_STRUCT_SIZE_LIMIT) [[likely]]
    return {};
  return {Code::kInternal, call + " answered " + std::string(figure) + " " +
                               std::to_string(stride) + ", expected at least " +
                               std::to_string(first_size) + " and at most " +
                               std::to_string(BP_STRUCT_SIZE_LIMIT)};
}

}  // namespace backplane::runtime
