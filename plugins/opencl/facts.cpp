// Which devices there are, and what they say of themselves.
#include "facts.h"

#include <backplane/sdk/signal_guard.hpp>

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace backplane::opencl {
namespace {

// Below that a result is still in the caches when it is read, also where a driver names one core's.
constexpr std::uint64_t kStreamBytes = std::uint64_t{8} << 20;

constexpr std::size_t kMostBuilders = 8;  // each takes some 200 MB while it runs

// Registers are as many as x86 has for vectors of that width; a quarter of them is the factors'.
std::int64_t product_sums(std::int64_t vector_floats) {
  const std::int64_t registers = vector_floats >= 16 ? 32 : 16;
  return std::max<std::int64_t>(registers * std::min<std::int64_t>(vector_floats, 16) / 16 * 3 / 4,
                                2);
}

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

template <class T>
T device_fact(cl_device_id device, cl_device_info what, T fallback) {
  T value = fallback;
  return clGetDeviceInfo(device, what, sizeof value, &value, nullptr) == CL_SUCCESS ? value
                                                                                    : fallback;
}
std::string device_text(cl_device_id device, cl_device_info what) {
  std::size_t size = 0;
  if (clGetDeviceInfo(device, what, 0, nullptr, &size) != CL_SUCCESS || size == 0) return {};
  std::string text(size, 0);
  clGetDeviceInfo(device, what, size, text.data(), nullptr);
  while (!text.empty() && (text.back() == 0 || text.back() == ' ')) text.pop_back();
  return text;
}

// Those of PoCL for its CPU devices are found by what they are built for, which is known of the
// schedule for CPUs alone: groups of one work-item.
std::size_t builders(const DeviceFacts& f) {
  if (!f.is_cpu || !f.driver_caches || f.kernels.gpu) return 1;
  if (const char* count = std::getenv("BACKPLANE_OPENCL_BUILDERS");
      count != nullptr && *count != 0) {
    if (!is_number(count))
      throw std::runtime_error("BACKPLANE_OPENCL_BUILDERS=" + std::string(count) +
                               " is no number of processes");
    return std::strtoull(count, nullptr, 10);
  }
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return std::min<std::size_t>(static_cast<std::size_t>(CPU_COUNT(&cores)), kMostBuilders);
}

DeviceFacts facts_of(cl_platform_id platform, cl_device_id device) {
  DeviceFacts f;
  f.platform = platform;
  f.device = device;
  f.name = device_text(device, CL_DEVICE_NAME);
  f.vendor = device_text(device, CL_DEVICE_VENDOR);
  f.version = device_text(device, CL_DEVICE_VERSION);
  f.driver = device_text(device, CL_DRIVER_VERSION);
  std::size_t size = 0;
  clGetPlatformInfo(platform, CL_PLATFORM_NAME, 0, nullptr, &size);
  f.platform_name.resize(size);
  clGetPlatformInfo(platform, CL_PLATFORM_NAME, size, f.platform_name.data(), nullptr);
  const char* pocl_cache = std::getenv("POCL_KERNEL_CACHE");
  f.driver_caches = f.platform_name.starts_with("Portable Computing Language") &&
                    (pocl_cache == nullptr || std::string_view(pocl_cache) != "0");
  const std::string extensions = device_text(device, CL_DEVICE_EXTENSIONS);
  f.kernels.has_fp64 = extensions.find("cl_khr_fp64") != std::string::npos;
  f.has_fp16 = extensions.find("cl_khr_fp16") != std::string::npos;
  f.is_cpu = (device_fact<cl_device_type>(device, CL_DEVICE_TYPE, 0) & CL_DEVICE_TYPE_CPU) != 0;
  const char* schedule = std::getenv("BACKPLANE_OPENCL_SCHEDULE");
  f.kernels.gpu =
      schedule != nullptr && *schedule != 0 ? std::string_view(schedule) == "gpu" : !f.is_cpu;
  f.builders = builders(f);
  const char* zero_copy = std::getenv("BACKPLANE_OPENCL_ZERO_COPY");
  f.binds_host_memory =
      f.is_cpu && !(zero_copy != nullptr && std::string_view(zero_copy) == "0") &&
      device_fact<cl_bool>(device, CL_DEVICE_HOST_UNIFIED_MEMORY, CL_FALSE) == CL_TRUE;
  f.memory_bytes = device_fact<cl_ulong>(device, CL_DEVICE_GLOBAL_MEM_SIZE, 0);
  if (const char* limit = std::getenv("BACKPLANE_OPENCL_MEMORY"); limit != nullptr && *limit != 0) {
    if (!is_number(limit))
      throw std::runtime_error("BACKPLANE_OPENCL_MEMORY=" + std::string(limit) +
                               " is no number of bytes");
    f.memory_bytes = std::strtoull(limit, nullptr, 10);
  }
  f.buffer_limit_bytes = device_fact<cl_ulong>(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, 0);
  f.local_bytes = device_fact<cl_ulong>(device, CL_DEVICE_LOCAL_MEM_SIZE, 0);
  f.compute_units = device_fact<cl_uint>(device, CL_DEVICE_MAX_COMPUTE_UNITS, 1);
  f.spares_a_core = f.is_cpu && f.compute_units < std::thread::hardware_concurrency();
  if (f.is_cpu)
    f.kernels.stream_bytes = std::max<std::uint64_t>(
        device_fact<cl_ulong>(device, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, 0) / 4, kStreamBytes);
  std::int64_t vector_floats =
      device_fact<cl_uint>(device, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, 16);
  if (const char* width = std::getenv("BACKPLANE_OPENCL_VECTOR_FLOATS");
      width != nullptr && *width != 0) {
    if (!is_number(width) || std::atoll(width) == 0)
      throw std::runtime_error("BACKPLANE_OPENCL_VECTOR_FLOATS=" + std::string(width) +
                               " is no number of floats");
    vector_floats = std::atoll(width);
  }
  f.kernels.product_sums = product_sums(vector_floats);
  f.clock_mhz = device_fact<cl_uint>(device, CL_DEVICE_MAX_CLOCK_FREQUENCY, 1000);
  f.kernels.group_limit = device_fact<std::size_t>(device, CL_DEVICE_MAX_WORK_GROUP_SIZE, 1);
  return f;
}

}  // namespace

std::vector<DeviceFacts> find_devices() {
  const sdk::SignalGuard signals;
  cl_uint platform_count = 0;
  const cl_int code = clGetPlatformIDs(0, nullptr, &platform_count);
  if (code != CL_SUCCESS || platform_count == 0)
    throw std::runtime_error(
        "no OpenCL platform: install a driver (Debian: pocl-opencl-icd) or set OCL_ICD_VENDORS to "
        "a folder with its .icd file");
  std::vector<cl_platform_id> platforms(platform_count);
  clGetPlatformIDs(platform_count, platforms.data(), nullptr);
  std::vector<DeviceFacts> found;
  for (cl_platform_id platform : platforms) {
    cl_uint count = 0;
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS) continue;
    std::vector<cl_device_id> devices(count);
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, devices.data(), nullptr) != CL_SUCCESS)
      continue;
    for (cl_device_id device : devices) found.push_back(facts_of(platform, device));
  }
  if (found.empty())
    throw std::runtime_error("no OpenCL device: " + std::to_string(platform_count) +
                             " platform(s) without a device");
  // Whoever has a GPU means it: a driver for the CPU may lie beside its driver.
  std::stable_partition(found.begin(), found.end(), [](const DeviceFacts& f) { return !f.is_cpu; });
  const char* wanted = std::getenv("BACKPLANE_OPENCL_DEVICE");
  std::string names;
  for (std::uint32_t i = 0; i < found.size(); ++i) {
    found[i].index = i;
    names += (i ? ", " : "") + std::to_string(i) + ": " + found[i].name;
  }
  if (wanted == nullptr || *wanted == 0) return found;
  std::erase_if(found, [&](const DeviceFacts& f) {
    if (is_number(wanted)) return std::to_string(f.index) != wanted;
    return f.name.find(wanted) == std::string::npos;
  });
  if (found.empty())
    throw std::runtime_error("BACKPLANE_OPENCL_DEVICE=" + std::string(wanted) +
                             " names none of the OpenCL devices (" + names + ")");
  return found;
}

}  // namespace backplane::opencl
