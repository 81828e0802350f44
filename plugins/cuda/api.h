// What the plugin uses of NVIDIA's driver, NVRTC and cuBLASLt, as they export it. Written down
// here, so that nothing of CUDA is needed to build the plugin.
#pragma once

#include <cstddef>

namespace backplane::cuda {

using Code = int;  // CUresult and nvrtcResult; 0: success
using DeviceId = int;
using Address = unsigned long long;
using ContextHandle = struct ContextObject*;
using ModuleHandle = struct ModuleObject*;
using FunctionHandle = struct FunctionObject*;
using StreamHandle = struct StreamObject*;
using EventHandle = struct EventObject*;
using ProgramHandle = struct ProgramObject*;  // of NVRTC

// CUresult.
constexpr Code kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100,
               kEccUncorrectable = 214, kNotReady = 600, kIllegalAddress = 700,
               kLaunchTimeout = 702, kAssert = 710, kHardwareStack = 714, kIllegalInstruction = 715,
               kMisalignedAddress = 716, kInvalidAddressSpace = 717, kInvalidProgramCounter = 718,
               kLaunchFailed = 719, kUnknown = 999;
// CUdevice_attribute.
constexpr int kMaxThreadsPerBlock = 1, kClockRate = 13, kMultiprocessorCount = 16,
              kMemoryClockRate = 36, kMemoryBusWidth = 37, kComputeCapabilityMajor = 75,
              kComputeCapabilityMinor = 76;
constexpr unsigned kNonBlockingStream = 1, kEventWithoutTiming = 2, kPortableMappedHost = 1 | 2;

// X(name, signature)
#define BP_CUDA_DRIVER(X)                                                                  \
  X(cuInit, Code(unsigned))                                                                \
  X(cuDriverGetVersion, Code(int*))                                                        \
  X(cuGetErrorString, Code(Code, const char**))                                            \
  X(cuDeviceGetCount, Code(int*))                                                          \
  X(cuDeviceGet, Code(DeviceId*, int))                                                     \
  X(cuDeviceGetName, Code(char*, int, DeviceId))                                           \
  X(cuDeviceGetUuid_v2, Code(unsigned char*, DeviceId))                                    \
  X(cuDeviceGetAttribute, Code(int*, int, DeviceId))                                       \
  X(cuDeviceTotalMem_v2, Code(std::size_t*, DeviceId))                                     \
  X(cuDevicePrimaryCtxRetain, Code(ContextHandle*, DeviceId))                              \
  X(cuDevicePrimaryCtxRelease_v2, Code(DeviceId))                                          \
  X(cuCtxPushCurrent_v2, Code(ContextHandle))                                              \
  X(cuCtxPopCurrent_v2, Code(ContextHandle*))                                              \
  X(cuMemAlloc_v2, Code(Address*, std::size_t))                                            \
  X(cuMemFree_v2, Code(Address))                                                           \
  X(cuMemHostAlloc, Code(void**, std::size_t, unsigned))                                   \
  X(cuMemFreeHost, Code(void*))                                                            \
  X(cuMemcpyHtoDAsync_v2, Code(Address, const void*, std::size_t, StreamHandle))           \
  X(cuMemcpyDtoHAsync_v2, Code(void*, Address, std::size_t, StreamHandle))                 \
  X(cuMemcpyDtoDAsync_v2, Code(Address, Address, std::size_t, StreamHandle))               \
  X(cuMemsetD8Async, Code(Address, unsigned char, std::size_t, StreamHandle))              \
  X(cuStreamCreate, Code(StreamHandle*, unsigned))                                         \
  X(cuStreamDestroy_v2, Code(StreamHandle))                                                \
  X(cuStreamSynchronize, Code(StreamHandle))                                               \
  X(cuStreamWaitEvent, Code(StreamHandle, EventHandle, unsigned))                          \
  X(cuEventCreate, Code(EventHandle*, unsigned))                                           \
  X(cuEventDestroy_v2, Code(EventHandle))                                                  \
  X(cuEventRecord, Code(EventHandle, StreamHandle))                                        \
  X(cuEventQuery, Code(EventHandle))                                                       \
  X(cuEventSynchronize, Code(EventHandle))                                                 \
  X(cuEventElapsedTime, Code(float*, EventHandle, EventHandle))                            \
  X(cuModuleLoadData, Code(ModuleHandle*, const void*))                                    \
  X(cuModuleUnload, Code(ModuleHandle))                                                    \
  X(cuModuleGetFunction, Code(FunctionHandle*, ModuleHandle, const char*))                 \
  X(cuLaunchKernel, Code(FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned, \
                         unsigned, unsigned, StreamHandle, void**, void**))

#define BP_CUDA_NVRTC(X)                                                                         \
  X(nvrtcVersion, Code(int*, int*))                                                              \
  X(nvrtcGetErrorString, const char*(Code))                                                      \
  X(nvrtcCreateProgram,                                                                          \
    Code(ProgramHandle*, const char*, const char*, int, const char* const*, const char* const*)) \
  X(nvrtcCompileProgram, Code(ProgramHandle, int, const char* const*))                           \
  X(nvrtcGetCUBINSize, Code(ProgramHandle, std::size_t*))                                        \
  X(nvrtcGetCUBIN, Code(ProgramHandle, char*))                                                   \
  X(nvrtcGetProgramLogSize, Code(ProgramHandle, std::size_t*))                                   \
  X(nvrtcGetProgramLog, Code(ProgramHandle, char*))                                              \
  X(nvrtcDestroyProgram, Code(ProgramHandle*))

// cuBLASLt. Of enumerations and of what attributes hold, what products need.
using BlasHandle = struct BlasObject*;
using BlasDescription = struct BlasDescriptionObject*;  // cublasLtMatmulDesc_t
using BlasLayout = struct BlasLayoutObject*;
using BlasPreference = struct BlasPreferenceObject*;
struct BlasAlgorithm {
  unsigned long long data[8];
};
struct BlasChoice {  // cublasLtMatmulHeuristicResult_t
  BlasAlgorithm algorithm;
  std::size_t workspace_bytes;
  Code status;
  float waves;
  int reserved[4];
};
constexpr int kBlasFloat32 = 0, kBlasFloat16 = 2, kBlasBfloat16 = 14;  // cudaDataType
constexpr int kBlasComputeFloat32 = 68;
constexpr int kBlasTransposeLeft = 3, kBlasTransposeRight = 4;  // of a description
constexpr int kBlasEpilogue = 7, kBlasBias = 8, kBlasBiasType = 26;
constexpr int kBlasTransposed = 1, kBlasEpilogueBias = 4;
constexpr int kBlasBatchCount = 5, kBlasBatchStride = 6;    // of a layout
constexpr int kBlasWorkspaceLimit = 1, kBlasAlignment = 5;  // of a preference; of A, then B, C, D

#define BP_CUDA_BLAS(X)                                                                        \
  X(cublasLtGetVersion, std::size_t())                                                         \
  X(cublasLtCreate, Code(BlasHandle*))                                                         \
  X(cublasLtDestroy, Code(BlasHandle))                                                         \
  X(cublasLtMatmulDescCreate, Code(BlasDescription*, int, int))                                \
  X(cublasLtMatmulDescSetAttribute, Code(BlasDescription, int, const void*, std::size_t))      \
  X(cublasLtMatmulDescDestroy, Code(BlasDescription))                                          \
  X(cublasLtMatrixLayoutCreate,                                                                \
    Code(BlasLayout*, int, unsigned long long, unsigned long long, long long))                 \
  X(cublasLtMatrixLayoutSetAttribute, Code(BlasLayout, int, const void*, std::size_t))         \
  X(cublasLtMatrixLayoutDestroy, Code(BlasLayout))                                             \
  X(cublasLtMatmulPreferenceCreate, Code(BlasPreference*))                                     \
  X(cublasLtMatmulPreferenceSetAttribute, Code(BlasPreference, int, const void*, std::size_t)) \
  X(cublasLtMatmulPreferenceDestroy, Code(BlasPreference))                                     \
  X(cublasLtMatmulAlgoGetHeuristic,                                                            \
    Code(BlasHandle, BlasDescription, BlasLayout, BlasLayout, BlasLayout, BlasLayout,          \
         BlasPreference, int, BlasChoice*, int*))                                              \
  X(cublasLtMatmul, Code(BlasHandle, BlasDescription, const void*, const void*, BlasLayout,    \
                         const void*, BlasLayout, const void*, const void*, BlasLayout, void*, \
                         BlasLayout, const BlasAlgorithm*, void*, std::size_t, StreamHandle))

template <class Signature>
using Function = Signature*;

#define BP_CUDA_FIELD(name, ...) Function<__VA_ARGS__> name = nullptr;
struct Driver {
  BP_CUDA_DRIVER(BP_CUDA_FIELD)
  int version = 0;  // of CUDA that it speaks: 1000 * major + 10 * minor
};
struct Nvrtc {
  BP_CUDA_NVRTC(BP_CUDA_FIELD)
  int major = 0, minor = 0;
};
struct Blas {
  BP_CUDA_BLAS(BP_CUDA_FIELD)
};
#undef BP_CUDA_FIELD

}  // namespace backplane::cuda
