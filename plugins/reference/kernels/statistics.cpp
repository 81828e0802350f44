// Histograms.
#include <algorithm>
#include <cmath>

#include "kernel_registry.h"

namespace backplane::reference {
namespace {

using std::int64_t;
using Values = std::vector<double>;

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
    low = *std::min_element(x.begin(), x.end());
    high = *std::max_element(x.begin(), x.end());
  }
  if (low == high) low -= 0.5, high += 0.5;
  const int64_t bins = f.out(0).elements();
  Values edges(bins + 1);
  const Type type = f.in(0).type;
  const double step = round_to(type, (high - low) / static_cast<double>(bins));
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
    {"aten.histogram.bin_ct", run_histogram_count},
    {"aten.histogram.bins_tensor", run_histogram_edges},
};

}  // namespace

KernelRows statistics_kernels() { return kRows; }

}  // namespace backplane::reference
