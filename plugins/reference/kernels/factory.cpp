// Ops that make a tensor from numbers.
#include <cmath>

#include "kernel_registry.h"

namespace backplane::reference {
namespace {

using std::int64_t;

template <int64_t kValue>
void run_constant(const Frame& f) {
  fill<int64_t>(f.out(), kValue);
}
void fill_number(const Frame& f, const char* name) {
  const Attribute* a = f.attribute(name);
  if (a == nullptr) return copy(f.out(), f.in(f.operand_count() - 1));
  if (a->is_complex)
    fill<Complex>(f.out(), {a->real, a->imaginary});
  else if (a->kind == BP_ATTRIBUTE_FLOAT)
    fill<double>(f.out(), a->real);
  else
    fill<int64_t>(f.out(), a->integer);
}
void run_full(const Frame& f) { fill_number(f, "fill_value"); }
void run_fill(const Frame& f) { fill_number(f, "value"); }
void run_scalar_tensor(const Frame& f) { fill_number(f, "s"); }
// Contents are unspecified; zeros keep runs reproducible.
void run_empty(const Frame& f) { fill<int64_t>(f.out(), 0); }

void run_arange(const Frame& f) {
  const Tensor out = f.out();
  const int64_t n = out.elements();
  if (is_integral(out.type)) {
    const int64_t start = f.integer("start", 0), step = f.integer("step", 1);
    std::vector<int64_t> v(n);
    for (int64_t i = 0; i < n; ++i) v[i] = start + i * step;
    return store(out, v);
  }
  const double start = f.real("start", 0), step = f.real("step", 1);
  std::vector<double> v(n);
  for (int64_t i = 0; i < n; ++i) v[i] = start + static_cast<double>(i) * step;
  store(out, v);
}

template <class T>
std::vector<T> linear_steps(T start, T end, int64_t n) {
  std::vector<T> v(n);
  const T step = n > 1 ? (end - start) / T(static_cast<double>(n - 1)) : T(0);
  for (int64_t i = 0; i < n; ++i)
    v[i] = i < n / 2 ? start + step * T(static_cast<double>(i))
                     : end - step * T(static_cast<double>(n - 1 - i));
  if (n == 1) v[0] = start;
  return v;
}
// An end of the range: an attribute, or the first or last operand.
template <class T>
T end_of(const Frame& f, const char* name, int64_t operand) {
  return f.present(name) ? f.scalar<T>(name, T(0)) : load<T>(f.in(operand)).at(0);
}
template <class T>
std::vector<T> steps_of(const Frame& f) {
  return linear_steps(end_of<T>(f, "start", 0), end_of<T>(f, "end", f.operand_count() - 1),
                      f.out().elements());
}
void run_linspace(const Frame& f) {
  const Tensor out = f.out();
  if (is_complex(out.type)) return store(out, steps_of<Complex>(f));
  if (!is_integral(out.type)) return store(out, steps_of<double>(f));
  // ATen computes integers with a float step.
  const double start = end_of<double>(f, "start", 0);
  const double end = end_of<double>(f, "end", f.operand_count() - 1);
  const int64_t n = out.elements();
  std::vector<double> v(n);
  const float step = n > 1 ? static_cast<float>(end - start) / static_cast<float>(n - 1) : 0;
  for (int64_t i = 0; i < n; ++i)
    v[i] = i < n / 2 ? start + static_cast<double>(step * static_cast<float>(i))
                     : end - static_cast<double>(step * static_cast<float>(n - 1 - i));
  if (n == 1) v[0] = start;
  store(out, v);
}
void run_logspace(const Frame& f) {
  const Tensor out = f.out();
  const double base = f.real("base", 10);
  const auto run = [&](auto zero) {
    auto v = steps_of<decltype(zero)>(f);
    for (auto& x : v) x = std::pow(decltype(zero)(base), x);
    store(out, v);
  };
  if (is_complex(out.type))
    run(Complex{});
  else
    run(double{});
}

void run_eye(const Frame& f) {
  const Tensor out = f.out();
  fill<int64_t>(out, 0);
  if (out.elements() == 0) return;
  Tensor diagonal = out;
  diagonal.dims = {std::min(out.dims[0], out.dims[1])};
  diagonal.strides = {out.strides[0] + out.strides[1]};
  fill<int64_t>(diagonal, 1);
}

template <bool kLower>
void run_triangle_indices(const Frame& f) {
  const int64_t rows = f.integer("row", 0), columns = f.integer("col", 0);
  const int64_t offset = f.integer("offset", 0);
  std::vector<int64_t> r, c;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      if (kLower ? j - i <= offset : j - i >= offset) r.push_back(i), c.push_back(j);
  r.insert(r.end(), c.begin(), c.end());
  store(f.out(), r);
}

// Windows, over n points of which the last is left out when periodic.
template <double (*kWindow)(double, const Frame&)>
void run_window(const Frame& f) {
  const Tensor out = f.out();
  const int64_t n = out.elements();
  const double length = static_cast<double>(f.flag("periodic", true) ? n : n - 1);
  std::vector<double> v(n, 1.0);
  if (n > 1)
    for (int64_t i = 0; i < n; ++i) v[i] = kWindow(static_cast<double>(i) / length, f);
  store(out, v);
}
constexpr double kTwoPi = 6.28318530717958647693;
double hann(double x, const Frame&) { return 0.5 - 0.5 * std::cos(kTwoPi * x); }
double hamming(double x, const Frame& f) {
  return f.real("alpha", 0.54) - f.real("beta", 0.46) * std::cos(kTwoPi * x);
}
double blackman(double x, const Frame&) {
  return 0.42 - 0.5 * std::cos(kTwoPi * x) + 0.08 * std::cos(2 * kTwoPi * x);
}
double bartlett(double x, const Frame&) { return 1 - std::abs(2 * x - 1); }
double kaiser(double x, const Frame& f) {
  const double beta = std::abs(f.real("beta", 12)), r = 2 * x - 1;  // the function is even
  const auto bessel = [](double z) { return std::cyl_bessel_i(0, z); };
  return bessel(beta * std::sqrt(std::fmax(0.0, 1 - r * r))) / bessel(beta);
}

constexpr KernelRow kRows[] = {
    {"aten.full", run_full, true},
    {"aten.full_like", run_full, true},
    {"aten.new_full", run_full, true},
    {"aten.fill.Scalar", run_fill, true},
    {"aten.fill.Tensor", run_fill, true},
    {"aten.scalar_tensor", run_scalar_tensor, true},
    {"aten.zeros", run_constant<0>, true},
    {"aten.zeros_like", run_constant<0>, true},
    {"aten.new_zeros", run_constant<0>, true},
    {"aten.zero", run_constant<0>, true},
    {"aten.ones", run_constant<1>, true},
    {"aten.ones_like", run_constant<1>, true},
    {"aten.new_ones", run_constant<1>, true},
    {"aten.empty.memory_format", run_empty, true},
    {"aten.empty_like", run_empty, true},
    {"aten.empty_strided", run_empty, true},
    {"aten.empty_permuted", run_empty, true},
    {"aten.new_empty", run_empty, true},
    {"aten.new_empty_strided", run_empty, true},
    {"aten.arange", run_arange},
    {"aten.arange.start", run_arange},
    {"aten.arange.start_step", run_arange},
    {"prims.iota", run_arange},
    {"aten.linspace", run_linspace, true},
    {"aten.linspace.Tensor_Tensor", run_linspace, true},
    {"aten.linspace.Tensor_Scalar", run_linspace, true},
    {"aten.linspace.Scalar_Tensor", run_linspace, true},
    {"aten.logspace", run_logspace, true},
    {"aten.logspace.Tensor_Tensor", run_logspace, true},
    {"aten.logspace.Tensor_Scalar", run_logspace, true},
    {"aten.logspace.Scalar_Tensor", run_logspace, true},
    {"aten.eye", run_eye, true},
    {"aten.eye.m", run_eye, true},
    {"aten.tril_indices", run_triangle_indices<true>},
    {"aten.triu_indices", run_triangle_indices<false>},
    {"aten.hann_window", run_window<hann>},
    {"aten.hann_window.periodic", run_window<hann>},
    {"aten.hamming_window", run_window<hamming>},
    {"aten.hamming_window.periodic", run_window<hamming>},
    {"aten.hamming_window.periodic_alpha", run_window<hamming>},
    {"aten.hamming_window.periodic_alpha_beta", run_window<hamming>},
    {"aten.blackman_window", run_window<blackman>},
    {"aten.blackman_window.periodic", run_window<blackman>},
    {"aten.bartlett_window", run_window<bartlett>},
    {"aten.bartlett_window.periodic", run_window<bartlett>},
    {"aten.kaiser_window", run_window<kaiser>},
    {"aten.kaiser_window.periodic", run_window<kaiser>},
    {"aten.kaiser_window.beta", run_window<kaiser>},
};

}  // namespace

KernelRows factory_kernels() { return kRows; }

}  // namespace backplane::reference
