// Discrete Fourier transforms, by the definition.
#include <array>
#include <cmath>

#include "kernel_registry.h"

namespace backplane::reference {
namespace {

using std::int64_t;

constexpr double kTwoPi = 6.28318530717958647693;

// Exact on the axes: what two points give has no imaginary part.
std::vector<Complex> roots(int64_t n, bool forward) {
  constexpr std::array<Complex, 4> kAxes{Complex(1, 0), Complex(0, 1), Complex(-1, 0),
                                         Complex(0, -1)};
  std::vector<Complex> out(n);
  for (int64_t k = 0; k < n; ++k) {
    const double angle = kTwoPi * static_cast<double>(k) / static_cast<double>(n);
    const Complex root = 4 * k % n == 0 ? kAxes[static_cast<std::size_t>(4 * k / n)]
                                        : Complex(std::cos(angle), std::sin(angle));
    out[k] = forward ? std::conj(root) : root;
  }
  return out;
}

struct Signal {
  Shape dims;
  std::vector<Complex> v;
};

// Transforms along `dim`; reads `length` points, of which those past the half are the conjugates
// when `half`; keeps the first `kept` results.
void transform(Signal& s, int64_t dim, bool forward, int64_t length, bool half, int64_t kept) {
  const std::vector<Complex> root = roots(length, forward);
  const int64_t size = s.dims[dim];
  int64_t inner = 1;
  for (std::size_t d = static_cast<std::size_t>(dim) + 1; d < s.dims.size(); ++d)
    inner *= s.dims[d];
  const int64_t block = size * inner;
  const int64_t outer = block != 0 ? static_cast<int64_t>(s.v.size()) / block : 0;
  std::vector<Complex> out(outer * kept * inner), line(length);
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i) {
      for (int64_t k = 0; k < length; ++k) {
        const bool mirrored = half && k > length / 2;
        const int64_t from = mirrored ? length - k : k;
        const Complex x = from < size ? s.v[(o * size + from) * inner + i] : Complex(0);
        line[k] = mirrored ? std::conj(x) : x;
      }
      if (half) {  // the spectrum of a real signal is real there
        line[0] = line[0].real();
        if (length % 2 == 0) line[length / 2] = line[length / 2].real();
      }
      for (int64_t j = 0; j < kept; ++j) {
        Complex sum = 0;
        for (int64_t k = 0; k < length; ++k) sum += line[k] * root[j * k % length];
        out[(o * kept + j) * inner + i] = sum;
      }
    }
  s.dims[dim] = kept;
  s.v = std::move(out);
}

// normalization: 0 none, 1 by the root of the length, 2 by the length.
void scale(const Frame& f, Signal& s, double length) {
  const int64_t mode = f.integer("normalization", 0);
  const double factor = mode == 0 ? 1 : mode == 1 ? 1 / std::sqrt(length) : 1 / length;
  for (Complex& v : s.v) v *= factor;
}

void run_c2c(const Frame& f) {
  Signal s{f.in(0).dims, load<Complex>(f.in(0))};
  double length = 1;
  for (int64_t d : f.ints("dim")) {
    const int64_t dim = wrap_dim(d, f.in(0).rank()), n = s.dims[dim];
    transform(s, dim, f.flag("forward", true), n, false, n);
    length *= static_cast<double>(n);
  }
  scale(f, s, length);
  store(f.out(), s.v);
}
void run_r2c(const Frame& f) {
  Signal s{f.in(0).dims, load<Complex>(f.in(0))};
  const Shape dims = f.ints("dim");
  double length = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    const int64_t dim = wrap_dim(dims[i], f.in(0).rank()), n = s.dims[dim];
    const bool halved = i + 1 == dims.size() && f.flag("onesided", true);
    transform(s, dim, true, n, false, halved ? n / 2 + 1 : n);
    length *= static_cast<double>(n);
  }
  scale(f, s, length);
  store(f.out(), s.v);
}
void run_c2r(const Frame& f) {
  Signal s{f.in(0).dims, load<Complex>(f.in(0))};
  const Shape dims = f.ints("dim");
  double length = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = wrap_dim(dims[i], f.in(0).rank());
    const bool last = i + 1 == dims.size();
    const int64_t n = last ? f.integer("last_dim_size", s.dims[dim]) : s.dims[dim];
    transform(s, dim, false, n, last, n);
    length *= static_cast<double>(n);
  }
  scale(f, s, length);
  store(f.out(), s.v);
}

constexpr KernelRow kRows[] = {
    {"aten._fft_c2c", run_c2c, true},
    {"aten._fft_r2c", run_r2c, true},
    {"aten._fft_c2r", run_c2r, true},
};

}  // namespace

KernelRows fft_kernels() { return kRows; }

}  // namespace backplane::reference
