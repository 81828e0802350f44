// NVIDIA's libraries, opened when they are needed first and kept.
#pragma once

#include "api.h"

namespace backplane::cuda {

// Both throw std::runtime_error that says what is missing and where it was looked for.
//
// BACKPLANE_CUDA_DRIVER names another file; else the loader's libcuda.so.1, then the folders that
// installers of the driver use.
const Driver& driver();
// BACKPLANE_CUDA_NVRTC names another file; else what lies beside this package or torch in the
// environment (wheels of nvidia-cuda-nvrtc), then CUDA_HOME, then /usr/local/cuda, then the
// loader's. Not newer by a major than the driver, which could not load what it builds.
const Nvrtc& nvrtc();
// cuBLASLt, looked for like NVRTC (BACKPLANE_CUDA_BLAS; "off": none). Null where there is none:
// then generated kernels compute products.
const Blas* find_blas();

}  // namespace backplane::cuda
