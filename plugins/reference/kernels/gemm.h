// C[m, n] += A[m, k] B[k, n], all row-major.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace backplane::reference {

template <class T>
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, T* c);

extern template void gemm<double>(std::int64_t, std::int64_t, std::int64_t, const double*,
                                  const double*, double*);
extern template void gemm<std::int64_t>(std::int64_t, std::int64_t, std::int64_t,
                                        const std::int64_t*, const std::int64_t*, std::int64_t*);
extern template void gemm<Complex>(std::int64_t, std::int64_t, std::int64_t, const Complex*,
                                   const Complex*, Complex*);

}  // namespace backplane::reference
