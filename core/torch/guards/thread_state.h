// Switches of the process and the thread that decide what a program computes.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace backplane::guards {

struct ThreadState {
  bool grad = false, inference = false, torch_function = false;
  bool deterministic = false, deterministic_warn_only = false, fills_new_memory = false;
  bool autocast_cpu = false, autocast_accelerator = false, autocast_device = false;
  bool autocast_cache = false;
  c10::ScalarType autocast_cpu_dtype{}, autocast_accelerator_dtype{}, autocast_device_dtype{};
  bool modes =
      false;  // a TorchFunctionMode, a TorchDispatchMode or a functorch transform is active
  // The classes of the TorchFunctionModes, the outermost first, to tell them apart.
  std::vector<const void*> function_modes;
  std::int64_t dispatch_modes = 0;
  c10::ScalarType default_dtype{};
  std::uint8_t attention = 0;

  static ThreadState current();
  bool operator==(const ThreadState&) const = default;
  // The first switch that differs, as "grad mode is off, expected on".
  std::string explain(const ThreadState& now) const;
  std::string text() const;
};

}  // namespace backplane::guards
