// Which devices there are, and what they say of themselves.
#include "facts.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "libraries.h"

namespace backplane::cuda {
namespace {

constexpr int kMatrixTilesMajor = 8;  // Ampere: bfloat16, and copies beside the products
constexpr int kLeastMajor = 7;  // Volta: what newer versions of NVRTC build for at the earliest

int attribute(DeviceId device, int which, int fallback) {
  int value = fallback;
  return driver().cuDeviceGetAttribute(&value, which, device) == kSuccess ? value : fallback;
}

std::string uuid_of(DeviceId device) {
  std::array<unsigned char, 16> bytes{};
  if (driver().cuDeviceGetUuid_v2(bytes.data(), device) != kSuccess) return {};
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += kDigits[bytes[i] >> 4];
    out += kDigits[bytes[i] & 15];
  }
  return out;
}

std::uint64_t memory_limit() {
  const char* limit = std::getenv("BACKPLANE_CUDA_MEMORY");
  if (limit == nullptr || *limit == 0) return 0;
  const std::string_view text(limit);
  if (!std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }))
    throw std::runtime_error("BACKPLANE_CUDA_MEMORY=" + std::string(text) +
                             " is no number of bytes");
  return std::strtoull(limit, nullptr, 10);
}

DeviceFacts facts_of(DeviceId device, std::uint32_t index) {
  DeviceFacts f;
  f.device = device;
  f.index = index;
  std::array<char, 256> name{};
  driver().cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device);
  f.name = name.data();
  f.uuid = uuid_of(device);
  f.major = attribute(device, kComputeCapabilityMajor, 0);
  f.minor = attribute(device, kComputeCapabilityMinor, 0);
  std::size_t bytes = 0;
  if (driver().cuDeviceTotalMem_v2(&bytes, device) == kSuccess) f.memory_bytes = bytes;
  f.memory_limit_bytes = memory_limit();
  f.multiprocessors = std::max(attribute(device, kMultiprocessorCount, 1), 1);
  f.clock_hz = 1e3 * attribute(device, kClockRate, 1'000'000);
  // Two transfers in each clock.
  f.memory_bytes_per_s =
      2e3 * attribute(device, kMemoryClockRate, 0) * attribute(device, kMemoryBusWidth, 0) / 8;
  f.kernels.dialect = kernelgen::Dialect::kCuda;
  f.kernels.gpu = true;
  f.kernels.lanes = 1;
  f.kernels.has_library_products = find_blas() != nullptr;
  f.kernels.has_matrix_tiles = f.major >= kMatrixTilesMajor;
  f.kernels.group_limit =
      static_cast<std::size_t>(std::max(attribute(device, kMaxThreadsPerBlock, 256), 1));
  return f;
}

}  // namespace

std::vector<DeviceFacts> find_devices() {
  const Driver& d = driver();
  if (const Code code = d.cuInit(0); code != kSuccess) {
    const char* words = nullptr;
    d.cuGetErrorString(code, &words);
    throw std::runtime_error("no device: cuInit failed with CUDA error " + std::to_string(code) +
                             (words != nullptr ? ": " + std::string(words) : ""));
  }
  int count = 0;
  d.cuDeviceGetCount(&count);
  if (count == 0) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    throw std::runtime_error("no device: the NVIDIA driver has none" +
                             (visible != nullptr
                                  ? " (CUDA_VISIBLE_DEVICES=" + std::string(visible) + ")"
                                  : std::string()));
  }
  nvrtc();  // says what is missing before anything relies on it
  std::vector<DeviceFacts> found;
  std::string old;
  for (int i = 0; i < count; ++i) {
    DeviceId device = 0;
    if (d.cuDeviceGet(&device, i) != kSuccess) continue;
    DeviceFacts facts = facts_of(device, static_cast<std::uint32_t>(i));
    if (facts.major >= kLeastMajor)
      found.push_back(std::move(facts));
    else
      old += (old.empty() ? "" : ", ") + facts.name + " (" + facts.architecture() + ")";
  }
  if (found.empty())
    throw std::runtime_error("no device: kernels need compute capability 7.0 or more; there is " +
                             (old.empty() ? "none that answers" : old));
  return found;
}

}  // namespace backplane::cuda
