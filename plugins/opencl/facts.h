// What is known of a device without a context.
#pragma once

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
  bool has_fp64 = false, has_fp16 = false;
  std::uint64_t memory_bytes = 0, buffer_limit_bytes = 0, local_bytes = 0;
  std::uint32_t compute_units = 1, clock_mhz = 1000;
  // A CPU whose driver has fewer threads than the process may use cores.
  bool spares_a_core = false;
  std::size_t group_limit = 1;
  std::uint64_t stream_bytes = 0;  // results of so many do not stay in a CPU's caches; 0: no CPU
  // Vectors of 16 floats that a CPU's registers hold as sums of a product, beside its factors.
  std::int64_t product_sums = 24;
  std::uint32_t index = 0;
  // Kernels read and write host memory where it lies: CPUs, unless BACKPLANE_OPENCL_ZERO_COPY=0.
  bool binds_host_memory = false;
  // The driver keeps what it builds on disk; a binary of its would be built a second time.
  bool driver_caches = false;
  // Processes that build kernels at a time, for drivers that build one at a time in a process.
  std::size_t builders = 1;
  // Kernels for many small work-items; BACKPLANE_OPENCL_SCHEDULE=gpu or cpu says otherwise (tests).
  bool gpu_schedule = false;
};
// All devices of all platforms, less those that BACKPLANE_OPENCL_DEVICE (an index, or a part of a
// name) leaves out. Throws std::runtime_error that says what is missing.
std::vector<DeviceFacts> find_devices();

}  // namespace backplane::opencl
