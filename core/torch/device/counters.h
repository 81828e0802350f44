// What eager operators on the device came to: on the plugin, or on the CPU and why.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::device {

struct FallbackCount {
  std::string op;      // "aten::nonzero", "aten::sort.stable"
  std::string reason;  // of the last one
  std::uint64_t count = 0;
};

void count_plugin_op() noexcept;
void count_fallback(std::string_view op, std::string_view reason);
std::uint64_t plugin_op_count() noexcept;
std::vector<FallbackCount> fallback_counts();  // the most frequent first
void reset_op_counts();

}  // namespace backplane::device
