// What is known of a device without a context.
#pragma once

#include <backplane/kernels/target.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "api.h"

namespace backplane::cuda {

struct DeviceFacts {
  DeviceId device = 0;
  std::uint32_t index = 0;  // among those that CUDA_VISIBLE_DEVICES leaves
  std::string name, uuid;
  int major = 0, minor = 0;  // compute capability
  std::uint64_t memory_bytes = 0;
  // What buffers may take; BACKPLANE_CUDA_MEMORY. 0: what the driver gives.
  std::uint64_t memory_limit_bytes = 0;
  int multiprocessors = 1;
  double clock_hz = 1e9, memory_bytes_per_s = 0;
  kernels::Facts kernels;

  std::string architecture() const { return "sm_" + std::to_string(major) + std::to_string(minor); }
};
// Throws std::runtime_error that says why there is none.
std::vector<DeviceFacts> find_devices();

}  // namespace backplane::cuda
