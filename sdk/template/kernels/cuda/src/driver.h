// What the plugin uses of a driver and a run-time compiler like NVIDIA's, opened when it is asked
// for its devices: a machine without them loads the plugin and hears why there is no device.
#pragma once

#include <cstddef>

namespace plugin {

using Code = int;  // of the driver and of the compiler; 0: success
using DeviceId = int;
using Address = unsigned long long;
using ContextHandle = struct ContextObject*;
using ModuleHandle = struct ModuleObject*;
using FunctionHandle = struct FunctionObject*;
using StreamHandle = struct StreamObject*;
using ProgramHandle = struct ProgramObject*;  // of the compiler

constexpr Code kSuccess = 0, kOutOfMemory = 2, kIllegalAddress = 700;
constexpr int kMaxThreadsPerBlock = 1, kMajor = 75, kMinor = 76;  // attributes of devices

// X(name, signature)
#define PLUGIN_DRIVER(X)                                                                   \
  X(cuInit, Code(unsigned))                                                                \
  X(cuGetErrorString, Code(Code, const char**))                                            \
  X(cuDeviceGetCount, Code(int*))                                                          \
  X(cuDeviceGet, Code(DeviceId*, int))                                                     \
  X(cuDeviceGetName, Code(char*, int, DeviceId))                                           \
  X(cuDeviceGetAttribute, Code(int*, int, DeviceId))                                       \
  X(cuDeviceTotalMem_v2, Code(std::size_t*, DeviceId))                                     \
  X(cuDevicePrimaryCtxRetain, Code(ContextHandle*, DeviceId))                              \
  X(cuCtxPushCurrent_v2, Code(ContextHandle))                                              \
  X(cuCtxPopCurrent_v2, Code(ContextHandle*))                                              \
  X(cuMemAlloc_v2, Code(Address*, std::size_t))                                            \
  X(cuMemFree_v2, Code(Address))                                                           \
  X(cuMemcpyHtoDAsync_v2, Code(Address, const void*, std::size_t, StreamHandle))           \
  X(cuMemcpyDtoHAsync_v2, Code(void*, Address, std::size_t, StreamHandle))                 \
  X(cuMemcpyDtoDAsync_v2, Code(Address, Address, std::size_t, StreamHandle))               \
  X(cuMemsetD8Async, Code(Address, unsigned char, std::size_t, StreamHandle))              \
  X(cuStreamCreate, Code(StreamHandle*, unsigned))                                         \
  X(cuStreamSynchronize, Code(StreamHandle))                                               \
  X(cuModuleLoadData, Code(ModuleHandle*, const void*))                                    \
  X(cuModuleUnload, Code(ModuleHandle))                                                    \
  X(cuModuleGetFunction, Code(FunctionHandle*, ModuleHandle, const char*))                 \
  X(cuLaunchKernel, Code(FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned, \
                         unsigned, unsigned, StreamHandle, void**, void**))

#define PLUGIN_COMPILER(X)                                                                       \
  X(nvrtcGetErrorString, const char*(Code))                                                      \
  X(nvrtcCreateProgram,                                                                          \
    Code(ProgramHandle*, const char*, const char*, int, const char* const*, const char* const*)) \
  X(nvrtcCompileProgram, Code(ProgramHandle, int, const char* const*))                           \
  X(nvrtcGetCUBINSize, Code(ProgramHandle, std::size_t*))                                        \
  X(nvrtcGetCUBIN, Code(ProgramHandle, char*))                                                   \
  X(nvrtcGetProgramLogSize, Code(ProgramHandle, std::size_t*))                                   \
  X(nvrtcGetProgramLog, Code(ProgramHandle, char*))                                              \
  X(nvrtcDestroyProgram, Code(ProgramHandle*))

template <class Signature>
using Function = Signature*;
#define PLUGIN_FIELD(name, ...) Function<__VA_ARGS__> name = nullptr;
struct Driver {
  PLUGIN_DRIVER(PLUGIN_FIELD)
};
struct Compiler {
  PLUGIN_COMPILER(PLUGIN_FIELD)
};
#undef PLUGIN_FIELD

// Opened by the first call, for good. They throw std::runtime_error that says what is missing.
const Driver& driver();
const Compiler& compiler();

}  // namespace plugin
