// Sums over bags of embeddings and over segments.
#include <cmath>
#include <limits>

#include "kernel_registry.h"
#include "kernels/indexing.h"
#include "kernels/reduce.h"

namespace backplane::reference {
namespace {

using std::int64_t;
using Values = std::vector<double>;
using Indices = std::vector<int64_t>;

enum Mode : int64_t { kSum = 0, kMean = 1, kMax = 2 };

// The bag of each index.
Indices bags_of(const Indices& offsets, int64_t count, int64_t bags) {
  Indices out(count, 0);
  for (int64_t b = 0; b < bags; ++b) {
    const int64_t end = b + 1 < static_cast<int64_t>(offsets.size()) ? offsets[b + 1] : count;
    if (offsets[b] < 0 || end > count) throw KernelError("embedding_bag: an offset out of range");
    for (int64_t i = offsets[b]; i < end; ++i) out[i] = b;
  }
  return out;
}
void store_if(const Frame& f, int64_t result, const Indices& v) {
  if (f.wants(result) && f.out(result).elements() == static_cast<int64_t>(v.size()))
    store(f.out(result), v);
}

// weight, indices, offsets, per_sample_weights? -> output, offset2bag, bag_size, max_indices
void run_embedding_bag(const Frame& f) {
  const Tensor weight = f.in(0), out = f.out(0);
  const int64_t width = weight.dims[1], mode = f.integer("mode", 0), bags = out.dims[0];
  const int64_t padding = f.integer("padding_idx", -1);
  const Indices index = load<int64_t>(f.in(1)), offsets = load<int64_t>(f.in(2));
  const Values scale = f.has(3) ? load<double>(f.in(3)) : Values(index.size(), 1.0);
  const auto count = static_cast<int64_t>(index.size());
  const Indices bag = bags_of(offsets, count, bags);
  Indices sizes(bags), best(bags * width);
  Values y(bags * width);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = checked_index(index[i], weight.dims[0]), b = bag[i];
    if (row == padding) continue;
    const Values v = load<double>(weight.select(0, row));
    for (int64_t c = 0; c < width; ++c) {
      double& to = y[b * width + c];
      if (mode != kMax) {
        to += v[c] * scale[i];
      } else if (sizes[b] == 0 || v[c] > to) {
        to = v[c];
        best[b * width + c] = row;
      }
    }
    ++sizes[b];
  }
  if (mode == kMean)
    for (int64_t i = 0; i < bags * width; ++i)
      if (sizes[i / width] != 0) y[i] /= static_cast<double>(sizes[i / width]);
  store(out, y);
  store_if(f, 1, bag);
  if (mode == kSum) std::fill(sizes.begin(), sizes.end(), 0);  // the framework does not count then
  store_if(f, 2, sizes);
  if (mode == kMax)
    store_if(f, 3, best);
  else
    store_if(f, 3, sizes);
}

struct BagGradient {
  const Frame& f;
  // Operands of the two forms of the op.
  int64_t offsets, offset2bag, bag_size, max_indices, scale;
};
void bag_backward(const BagGradient& b) {
  const Frame& f = b.f;
  const Tensor out = f.out();
  const int64_t width = out.dims[1], mode = f.integer("mode", 0);
  const int64_t padding = f.integer("padding_idx", -1);
  const Values g = load<double>(f.in(0));
  const Indices index = load<int64_t>(f.in(1));
  const auto count = static_cast<int64_t>(index.size());
  const int64_t bags = f.in(0).dims[0];
  Indices bag = load<int64_t>(f.in(b.offset2bag));
  if (static_cast<int64_t>(bag.size()) != count && b.offsets >= 0)
    bag = bags_of(load<int64_t>(f.in(b.offsets)), count, bags);
  for (const int64_t one : bag) checked_index(one, bags);
  Values gw(out.elements());
  if (mode == kMax) {
    const Indices best = load<int64_t>(f.in(b.max_indices)),
                  sizes = load<int64_t>(f.in(b.bag_size));
    for (int64_t i = 0; i < bags * width; ++i)
      if (sizes.empty() || sizes[i / width] > 0)
        gw[checked_index(best[i], out.dims[0]) * width + i % width] += g[i];
    return store(out, gw);
  }
  const Values scale = f.has(b.scale) ? load<double>(f.in(b.scale)) : Values(count, 1.0);
  Indices sizes(bags), uses(out.dims[0]);
  for (int64_t i = 0; i < count; ++i) {
    ++uses[checked_index(index[i], out.dims[0])];
    if (index[i] != padding) ++sizes[bag[i]];
  }
  for (int64_t i = 0; i < count; ++i) {
    if (index[i] == padding) continue;
    double factor = scale[i];
    if (mode == kMean) factor /= static_cast<double>(sizes[bag[i]]);
    if (f.flag("scale_grad_by_freq", false)) factor /= static_cast<double>(uses[index[i]]);
    for (int64_t c = 0; c < width; ++c) gw[index[i] * width + c] += factor * g[bag[i] * width + c];
  }
  store(out, gw);
}
void run_bag_backward(const Frame& f) { bag_backward({f, 2, 3, 4, 5, 6}); }
void run_bag_dense_backward(const Frame& f) { bag_backward({f, -1, 2, 3, 4, 5}); }
// grad, weight, indices, offsets, offset2bag
void run_bag_scale_backward(const Frame& f) {
  const Values g = load<double>(f.in(0));
  const Tensor weight = f.in(1);
  const Indices index = load<int64_t>(f.in(2));
  const auto count = static_cast<int64_t>(index.size());
  Indices bag = load<int64_t>(f.in(4));
  if (static_cast<int64_t>(bag.size()) != count)
    bag = bags_of(load<int64_t>(f.in(3)), count, f.in(0).dims[0]);
  for (const int64_t one : bag) checked_index(one, f.in(0).dims[0]);
  Values out(count);
  const int64_t width = weight.dims[1], padding = f.integer("padding_idx", -1);
  for (int64_t i = 0; i < count; ++i) {
    if (index[i] == padding) continue;
    const Values v = load<double>(weight.select(0, checked_index(index[i], weight.dims[0])));
    for (int64_t c = 0; c < width; ++c) out[i] += v[c] * g[bag[i] * width + c];
  }
  store(f.out(), out);
}

// Rows with a norm above max_norm are scaled down to it.
void run_embedding_renorm(const Frame& f) {
  const Tensor out = f.out();
  copy(out, f.in(0));
  const double limit = f.real("max_norm", 1), p = f.real("norm_type", 2);
  for (const int64_t i : load<int64_t>(f.in(1))) {
    const Tensor row = f.in(0).select(0, checked_index(i, out.dims[0]));
    Values v = load<double>(row);
    Values magnitudes;
    for (const double x : v) magnitudes.push_back(std::abs(x));
    const double norm = norm_of(magnitudes, p);
    if (!(norm > limit)) continue;  // NaN as well
    for (double& x : v) x *= limit / (norm + 1e-7);
    store(out.select(0, checked_index(i, out.dims[0])), v);
  }
}

// ---- Segments along an axis ----

// [outer, length, inner] with the starts of the segments of every outer entry.
struct Segments {
  Segments(const Frame& f, const Tensor& data, int64_t lengths, int64_t offsets) {
    axis = wrap_dim(f.integer("axis", 0), data.rank());
    for (int64_t d = 0; d < axis; ++d) outer *= data.dims[d];
    for (int64_t d = axis + 1; d < data.rank(); ++d) inner *= data.dims[d];
    length = data.dims[axis];
    if (f.has(lengths)) {
      const Indices sizes = load<int64_t>(f.in(lengths));
      count = f.in(lengths).dims.back();
      for (int64_t o = 0; o < outer; ++o) {
        starts.push_back(0);
        for (int64_t s = 0; s < count; ++s) starts.push_back(starts.back() + sizes[o * count + s]);
      }
    } else {
      starts = load<int64_t>(f.in(offsets));
      count = f.in(offsets).dims.back() - 1;
    }
    for (const int64_t start : starts) checked_index(start, length + 1);
  }
  void check_lengths() const {
    for (int64_t o = 0; o < outer; ++o)
      if (begin(o, count) != length)
        throw KernelError("segment_reduce: lengths that do not add up to the dimension's");
  }
  int64_t begin(int64_t o, int64_t s) const { return starts[o * (count + 1) + s]; }
  int64_t axis, outer = 1, inner = 1, length, count;
  Indices starts;
};
double initial_of(const Frame& f, std::string_view reduce) {
  if (f.present("initial")) return f.real("initial", 0);
  if (reduce == "max") return -std::numeric_limits<double>::infinity();
  if (reduce == "min") return std::numeric_limits<double>::infinity();
  return reduce == "prod" ? 1 : 0;
}
// data, lengths?, indices?, offsets?
void run_segment_reduce(const Frame& f) {
  const Tensor data = f.in(0);
  const Segments g(f, data, 1, 3);
  if (f.has(1) && !f.flag("unsafe", false)) g.check_lengths();
  const std::string_view reduce = f.text("reduce", "sum");
  const Values x = load<double>(data);
  Values y;
  for (int64_t o = 0; o < g.outer; ++o)
    for (int64_t s = 0; s < g.count; ++s)
      for (int64_t i = 0; i < g.inner; ++i) {
        double v = initial_of(f, reduce);
        const int64_t begin = g.begin(o, s), end = g.begin(o, s + 1);
        for (int64_t k = begin; k < end; ++k) {
          const double e = x[(o * g.length + k) * g.inner + i];
          if (reduce == "max")
            v = std::isnan(e) || e > v ? e : v;
          else if (reduce == "min")
            v = std::isnan(e) || e < v ? e : v;
          else if (reduce == "prod")
            v *= e;
          else
            v += e;
        }
        if (reduce == "mean") {
          if (begin == end && !f.present("initial"))
            v = std::nan("");
          else if (begin < end)
            v /= static_cast<double>(end - begin);
        }
        y.push_back(v);
      }
  store(f.out(), y);
}
// grad, output, data, lengths?, offsets?
void run_segment_reduce_backward(const Frame& f) {
  const Tensor data = f.in(2);
  const Segments g(f, data, 3, 4);
  const std::string_view reduce = f.text("reduce", "sum");
  const Values grad = load<double>(f.in(0)), y = load<double>(f.in(1)), x = load<double>(data);
  Values gx(x.size());
  int64_t at = 0;
  for (int64_t o = 0; o < g.outer; ++o)
    for (int64_t s = 0; s < g.count; ++s)
      for (int64_t i = 0; i < g.inner; ++i, ++at) {
        const int64_t begin = g.begin(o, s), end = g.begin(o, s + 1);
        const auto place = [&](int64_t k) { return (o * g.length + k) * g.inner + i; };
        double ties = 0;
        for (int64_t k = begin; k < end; ++k)
          ties += x[place(k)] == y[at] || std::isnan(x[place(k)]) ? 1 : 0;
        for (int64_t k = begin; k < end; ++k) {
          const double e = x[place(k)];
          double& to = gx[place(k)];
          if (reduce == "mean") {
            to = grad[at] / static_cast<double>(end - begin);
          } else if (reduce == "sum") {
            to = grad[at];
          } else if (reduce == "prod") {
            double others = initial_of(f, reduce);
            for (int64_t q = begin; q < end; ++q)
              if (q != k) others *= x[place(q)];
            to = grad[at] * others;
          } else if (e == y[at] || std::isnan(e)) {
            to = grad[at] / ties;
          }
        }
      }
  store(f.out(), gx);
}

constexpr KernelRow kRows[] = {
    {"aten._embedding_bag", run_embedding_bag},
    {"aten._embedding_bag_forward_only", run_embedding_bag},
    {"aten.embedding_bag", run_embedding_bag},
    {"aten._embedding_bag_backward", run_bag_backward},
    {"aten._embedding_bag_dense_backward", run_bag_dense_backward},
    {"aten._embedding_bag_per_sample_weights_backward", run_bag_scale_backward},
    {"aten.embedding_renorm", run_embedding_renorm},
    {"aten.segment_reduce", run_segment_reduce},
    {"aten._segment_reduce_backward", run_segment_reduce_backward},
};

}  // namespace

KernelRows bag_kernels() { return kRows; }

}  // namespace backplane::reference
