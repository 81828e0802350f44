// Rounding to a grid of integers and back.
#include <cmath>

#include "kernel_registry.h"

namespace backplane::reference {
namespace {

using std::int64_t;

// The framework rounds in float; a point between two steps would fall to either side.
struct Grid {
  double low, high;
  double index(double x, double scale, double zero) const {
    const float inverse = 1.0f / static_cast<float>(scale);
    return zero + static_cast<double>(std::nearbyint(static_cast<float>(x) * inverse));
  }
};
void quantize(const Frame& f, double scale, double zero, bool enabled) {
  const Grid grid{f.real("quant_min", 0), f.real("quant_max", 255)};
  std::vector<double> x = load<double>(f.in(0));
  std::vector<int64_t> mask(x.size(), 1);
  for (std::size_t i = 0; enabled && i < x.size(); ++i) {
    const double q = grid.index(x[i], scale, zero);
    mask[i] = q >= grid.low && q <= grid.high ? 1 : 0;
    x[i] = (std::fmin(std::fmax(q, grid.low), grid.high) - zero) * scale;
  }
  store(f.out(0), x);
  if (f.wants(1)) store(f.out(1), mask);
}
void run_per_tensor(const Frame& f) {
  quantize(f, f.real("scale", 1), f.real("zero_point", 0), true);
}
// self, scale, zero_point, fake_quant_enabled
void run_per_tensor_operands(const Frame& f) {
  quantize(f, load<double>(f.in(1)).at(0), load<double>(f.in(2)).at(0),
           load<int64_t>(f.in(3)).at(0) != 0);
}

constexpr KernelRow kRows[] = {
    {"aten.fake_quantize_per_tensor_affine_cachemask", run_per_tensor},
    {"aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams", run_per_tensor_operands},
};

}  // namespace

KernelRows quantization_kernels() { return kRows; }

}  // namespace backplane::reference
