#include "memory.h"

namespace backplane::cuda {
namespace {

// After these the context answers everything with the same error.
bool ends_context(Code code) {
  switch (code) {
    case kEccUncorrectable:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kAssert:
    case kHardwareStack:
    case kIllegalInstruction:
    case kMisalignedAddress:
    case kInvalidAddressSpace:
    case kInvalidProgramCounter:
    case kLaunchFailed:
    case kUnknown:
      return true;
    default:
      return false;
  }
}

}  // namespace

Status driver_error(const char* call, Code code) {
  const char* words = nullptr;
  driver().cuGetErrorString(code, &words);
  const bp_code meaning = code == kOutOfMemory ? BP_OUT_OF_MEMORY
                          : ends_context(code) ? BP_DEVICE_LOST
                          : code == kNotReady  ? BP_TIMEOUT
                                               : BP_INTERNAL;
  return {meaning, std::string(call) + " failed with CUDA error " + std::to_string(code) +
                       (words != nullptr ? ": " + std::string(words) : std::string())};
}

// Fails where the process ends and the driver has gone first; the memory is gone with it then.
Memory::~Memory() {
  const Current current(context_);
  driver().cuMemFree_v2(address_);
}

Pool::Pool(ContextHandle context, std::uint64_t limit_bytes)
    : BufferPool(
          [context](std::uint64_t bytes) -> Result<std::unique_ptr<Memory>> {
            const Current current(context);
            Address address = 0;
            const Code code = driver().cuMemAlloc_v2(&address, bytes);
            if (code == kOutOfMemory) return std::unique_ptr<Memory>();
            if (code != kSuccess) return driver_error("cuMemAlloc", code);
            return std::make_unique<Memory>(context, address, bytes);
          },
          limit_bytes) {}

}  // namespace backplane::cuda
