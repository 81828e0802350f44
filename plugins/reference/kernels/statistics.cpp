// Histograms.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernel_registry.h"
#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

using std::int64_t;
using Values = std::vector<double>;

std::pair<double, double> finite_bounds(const Values& x, const std::string& op) {
  if (std::ranges::any_of(x, [](double v) { return !std::isfinite(v); }))
    throw KernelError(op + ": a range that is not finite");
  return {*std::ranges::min_element(x), *std::ranges::max_element(x)};
}

void run_bincount(const Frame& f) {
  const std::vector<int64_t> v = load<int64_t>(f.in(0));
  Values counts(f.out().elements());
  const Values weights = f.has(1) ? load<double>(f.in(1)) : Values{};
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (v[i] < 0 || v[i] >= static_cast<int64_t>(counts.size()))
      throw KernelError("bincount: value out of range");
    counts[v[i]] += weights.empty() ? 1 : weights[i];
  }
  store(f.out(), counts);
}
void run_histc(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  const Values v = load<double>(in);
  double low = f.real("min", 0), high = f.real("max", 0);
  const int64_t bins = out.elements();
  if (low == high && !v.empty()) {
    std::tie(low, high) = finite_bounds(v, "histc");
  }
  if (low == high) low -= 1, high += 1;
  // In the element type, short ones too, as the framework finds the bin.
  const auto rounded = [&](double x) { return round_to(in.type, x); };
  low = rounded(low);
  high = rounded(high);
  const double factor = rounded(static_cast<double>(bins)), width = rounded(high - low);
  Values counts(bins);
  for (const double x : v) {
    if (!(x >= low && x <= high)) continue;
    const double scaled = rounded(rounded(x - low) * factor);
    const auto bin = static_cast<int64_t>(rounded(scaled / width));
    counts[std::min(bin, bins - 1)] += 1;
  }
  store(out, counts);
}

// Counts of self (weighted) between the edges, the last bin closed.
void count_between(const Frame& f, const Values& x, const Values& edges, int64_t weight) {
  const Values w = f.has(weight) ? load<double>(f.in(weight)) : Values(x.size(), 1.0);
  Values counts(edges.size() - 1);
  double total = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!(x[i] >= edges.front() && x[i] <= edges.back())) continue;
    auto bin = std::upper_bound(edges.begin(), edges.end(), x[i]) - edges.begin() - 1;
    bin = std::min<std::ptrdiff_t>(bin, static_cast<std::ptrdiff_t>(counts.size()) - 1);
    counts[bin] += w[i];
    total += w[i];
  }
  if (f.flag("density", false))
    for (std::size_t b = 0; b < counts.size(); ++b) counts[b] /= total * (edges[b + 1] - edges[b]);
  store(f.out(0), counts);
  if (f.wants(1)) store(f.out(1), edges);
}
void run_histogram_count(const Frame& f) {
  const Values x = load<double>(f.in(0)), range = f.reals("range");
  double low = 0, high = 1;
  if (!range.empty()) {
    low = range[0];
    high = range[1];
  } else if (!x.empty()) {
    std::tie(low, high) = finite_bounds(x, "histogram");
  }
  if (low == high) low -= 0.5, high += 0.5;
  const int64_t bins = f.out(0).elements();
  Values edges(bins + 1);
  // In the element type, as the framework makes a row of numbers.
  const Type type = f.in(0).type;
  low = round_to(type, low);
  high = round_to(type, high);
  const double step = round_to(type, round_to(type, high - low) / static_cast<double>(bins));
  for (int64_t i = 0; i <= bins; ++i)
    edges[i] = i < (bins + 1) / 2 ? low + step * static_cast<double>(i)
                                  : high - step * static_cast<double>(bins - i);
  for (double& e : edges) e = round_to(type, e);
  count_between(f, x, edges, 1);
}
// self, bins, weight?
void run_histogram_edges(const Frame& f) {
  count_between(f, load<double>(f.in(0)), load<double>(f.in(1)), 2);
}

constexpr KernelRow kRows[] = {
    {"aten.bincount", run_bincount},
    {"aten.histc", run_histc},
    {"aten.histogram.bin_ct", run_histogram_count},
    {"aten.histogram.bins_tensor", run_histogram_edges},
};

}  // namespace

KernelRows statistics_kernels() { return kRows; }

}  // namespace backplane::reference
