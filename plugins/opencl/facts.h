// What is known of a device without a context.
#pragma once

#include <backplane/kernels/target.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "memory.h"

namespace backplane::opencl {

struct DeviceFacts {
  cl_platform_id platform = nullptr;
  cl_device_id device = nullptr;
  std::string name, vendor, version, driver, platform_name;
  bool is_cpu = false;
  bool has_fp16 = false;
  std::uint64_t memory_bytes = 0, buffer_limit_bytes = 0, local_bytes = 0;
  std::uint32_t compute_units = 1, clock_mhz = 1000;
  // A CPU whose driver has fewer threads than the process may use cores.
  bool spares_a_core = false;
  std::uint32_t index = 0;
  // Kernels read and write host memory where it lies: CPUs, unless BACKPLANE_OPENCL_ZERO_COPY=0.
  bool binds_host_memory = false;
  // The driver keeps what it builds on disk; a binary of its would be built a second time.
  bool driver_caches = false;
  // Processes that build kernels at a time, for drivers that build one at a time in a process.
  std::size_t builders = 1;
  // Kernels are for many small work-items where the device is no CPU; BACKPLANE_OPENCL_SCHEDULE=gpu
  // or cpu says otherwise (tests).
  kernels::Facts kernels;
};
// All devices of all platforms, less those that BACKPLANE_OPENCL_DEVICE (an index, or a part of a
// name) leaves out. Throws std::runtime_error that says what is missing.
std::vector<DeviceFacts> find_devices();

}  // namespace backplane::opencl
