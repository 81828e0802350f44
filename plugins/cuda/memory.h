// Memory of the device and of the host, and what failed calls of the driver mean.
#pragma once

#include <backplane/sdk/device.hpp>
#include <backplane/sdk/pool.hpp>

#include <memory>

#include "libraries.h"

namespace backplane::cuda {

using sdk::Result;
using sdk::Status;

// Names the call, the driver's code and words. DEVICE_LOST: nothing works in the context any more.
Status driver_error(const char* call, Code code);
#define BP_CUDA_RETURN_IF_ERROR(function, ...)                                   \
  do {                                                                           \
    if (const ::backplane::cuda::Code bp_code_ = driver().function(__VA_ARGS__); \
        bp_code_ != ::backplane::cuda::kSuccess)                                 \
      return ::backplane::cuda::driver_error(#function, bp_code_);               \
  } while (false)

// The context of a device is the thread's while this lives.
class Current {
 public:
  explicit Current(ContextHandle context) { driver().cuCtxPushCurrent_v2(context); }
  ~Current() {
    ContextHandle popped = nullptr;
    driver().cuCtxPopCurrent_v2(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

class Memory {
 public:
  Memory(ContextHandle context, Address address, std::uint64_t bytes)
      : context_(context), address_(address), bytes_(bytes) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* address() const { return reinterpret_cast<std::byte*>(address_); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  ContextHandle context_;
  Address address_;
  std::uint64_t bytes_;
};

class Pool final : public sdk::BufferPool<Memory> {
 public:
  Pool(ContextHandle context, std::uint64_t limit_bytes);
};

inline Address address_of(const void* data) { return reinterpret_cast<Address>(data); }

}  // namespace backplane::cuda
