#include "kernels/gemm.h"

#include <algorithm>
#include <type_traits>
#include <vector>

namespace backplane::reference {
namespace {

constexpr std::int64_t kRowsOfTile = 4, kColumnsOfTile = 4;
constexpr std::int64_t kDepthBlock = 256;  // of a packed panel: stays in the first cache

// A 4 x 4 tile of C over `depth`: b is packed, four columns side by side.
void tile(std::int64_t depth, const double* a, std::int64_t a_stride, const double* b, double* c,
          std::int64_t c_stride) {
  double sum[kRowsOfTile][kColumnsOfTile] = {};
  for (std::int64_t p = 0; p < depth; ++p) {
    const double* bp = b + p * kColumnsOfTile;
    for (std::int64_t i = 0; i < kRowsOfTile; ++i) {
      const double v = a[i * a_stride + p];
      for (std::int64_t j = 0; j < kColumnsOfTile; ++j) sum[i][j] += v * bp[j];
    }
  }
  for (std::int64_t i = 0; i < kRowsOfTile; ++i)
    for (std::int64_t j = 0; j < kColumnsOfTile; ++j) c[i * c_stride + j] += sum[i][j];
}

template <class T>
void plain(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_stride,
           const T* b, std::int64_t b_stride, T* c, std::int64_t c_stride) {
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t p = 0; p < k; ++p) {
      const T v = a[i * a_stride + p];
      const T* row = b + p * b_stride;
      T* to = c + i * c_stride;
      for (std::int64_t j = 0; j < n; ++j) {
        if constexpr (std::is_same_v<T, std::int64_t>) {
          using U = std::uint64_t;  // wraps
          to[j] =
              static_cast<T>(static_cast<U>(to[j]) + static_cast<U>(v) * static_cast<U>(row[j]));
        } else {
          to[j] += v * row[j];
        }
      }
    }
}

void blocked(std::int64_t m, std::int64_t n, std::int64_t k, const double* a, const double* b,
             double* c) {
  const std::int64_t whole_m = m / kRowsOfTile * kRowsOfTile;
  const std::int64_t whole_n = n / kColumnsOfTile * kColumnsOfTile;
  std::vector<double> panel(kDepthBlock * kColumnsOfTile);
  for (std::int64_t p = 0; p < k; p += kDepthBlock) {
    const std::int64_t depth = std::min(kDepthBlock, k - p);
    for (std::int64_t j = 0; j < whole_n; j += kColumnsOfTile) {
      for (std::int64_t q = 0; q < depth; ++q)
        std::copy_n(b + (p + q) * n + j, kColumnsOfTile, panel.data() + q * kColumnsOfTile);
      for (std::int64_t i = 0; i < whole_m; i += kRowsOfTile)
        tile(depth, a + i * k + p, k, panel.data(), c + i * n + j, n);
    }
  }
  plain(m - whole_m, n, k, a + whole_m * k, k, b, n, c + whole_m * n, n);
  plain(whole_m, n - whole_n, k, a, k, b + whole_n, n, c + whole_n, n);
}

}  // namespace

template <class T>
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, T* c) {
  if constexpr (std::is_same_v<T, double>)
    blocked(m, n, k, a, b, c);
  else
    plain(m, n, k, a, k, b, n, c, n);
}

template void gemm<double>(std::int64_t, std::int64_t, std::int64_t, const double*, const double*,
                           double*);
template void gemm<std::int64_t>(std::int64_t, std::int64_t, std::int64_t, const std::int64_t*,
                                 const std::int64_t*, std::int64_t*);
template void gemm<Complex>(std::int64_t, std::int64_t, std::int64_t, const Complex*,
                            const Complex*, Complex*);

}  // namespace backplane::reference
