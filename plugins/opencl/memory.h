// Device memory: addresses, buffers and the pool they come from.
#pragma once

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#include <CL/cl.h>
#include <backplane/sdk/device.hpp>
#include <backplane/sdk/pool.hpp>

#include <memory>

namespace backplane::opencl {

using sdk::Result;
using sdk::Status;

// Names the call, the driver's code and what it means.
Status driver_error(const char* call, cl_int code);
bool is_out_of_memory(cl_int code);
#define BP_CL_RETURN_IF_ERROR(call, expression)                             \
  do {                                                                      \
    if (const cl_int bp_cl_code_ = (expression); bp_cl_code_ != CL_SUCCESS) \
      return ::backplane::opencl::driver_error(call, bp_cl_code_);          \
  } while (false)

// ---- Addresses ----------------------------------------------------------------------------------
// A device buffer is known by an address that no pointer has: a tag, a slot of the table of
// buffers, and the offset. So that the SDK's pointer arithmetic serves a device without pointers.

struct Place {
  cl_mem memory = nullptr;
  std::uint64_t offset = 0;
};
bool is_device_address(const void* address);
Place place_of(const void* address);  // of a device address

// Owns one slot and the buffer in it.
class Memory {
 public:
  Memory(cl_mem memory, std::uint64_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* address() const { return address_; }
  std::uint64_t bytes() const { return bytes_; }
  cl_mem get() const { return memory_; }

 private:
  cl_mem memory_;
  std::uint64_t bytes_;
  std::byte* address_;
};

class Pool final : public sdk::BufferPool<Memory> {
 public:
  Pool(cl_context context, std::uint64_t limit_bytes);
};

}  // namespace backplane::opencl
