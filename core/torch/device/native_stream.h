// Streams of PyTorch's own devices, as their drivers know them.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace backplane::device {

// The driver's handle of the calling thread's current stream on a device of PyTorch's own (of CUDA,
// its cudaStream_t). A c10::Error where this build of PyTorch does not tell.
std::uint64_t current_stream_handle(c10::Device device);

}  // namespace backplane::device
