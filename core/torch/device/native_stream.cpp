#include "core/torch/device/native_stream.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

namespace backplane::device {

namespace {

// PyTorch asks a device's guard from 2.12 on. Before, CUDA's streams tell it in a library that
// whoever has such a device has loaded; a CUDAStream is a c10::Stream and nothing else.
template <class Guard>
void* ask_guard(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.getStreamNativeHandle(stream); })
    return guard.getStreamNativeHandle(stream);
  TORCH_CHECK(false, "this build of PyTorch does not tell what streams of ", stream.device(),
              " are");
}

using CudaStreamHandle = void* (*)(const c10::Stream*);
CudaStreamHandle find_cuda_stream_handle() {
  void* const library = ::dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  // cudaStream_t c10::cuda::CUDAStream::stream() const
  void* const found = ::dlsym(library, "_ZNK3c104cuda10CUDAStream6streamEv");
  ::dlclose(library);
  return reinterpret_cast<CudaStreamHandle>(found);
}

}  // namespace

std::uint64_t current_stream_handle(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStream(device);
  static const CudaStreamHandle of_cuda = find_cuda_stream_handle();
  void* const handle =
      device.is_cuda() && of_cuda != nullptr ? of_cuda(&stream) : ask_guard(guard, stream);
  return reinterpret_cast<std::uint64_t>(handle);
}

}  // namespace backplane::device
