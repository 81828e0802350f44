// Products by a library of the device, with packing before them and an epilogue after them where
// the library does not do it.
#pragma once

#include "gemm.hpp"

namespace backplane::kernels {

// Whether the library computes it: then its launches are added.
Result<bool> add_library_product(Builder& builder, const Gemm& gemm);

}  // namespace backplane::kernels
