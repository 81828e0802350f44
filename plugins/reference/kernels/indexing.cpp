// Gathers, scatters and embeddings.
#include "kernels/indexing.h"

#include <algorithm>
#include <limits>
#include <map>

#include "kernel_registry.h"
#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

using Offsets = std::vector<int64_t>;

// ---- Whole rows ----

void run_embedding(const Frame& f) {
  const Tensor weight = f.in(0), out = f.out();
  const Offsets index = load<int64_t>(f.in(1));
  const int64_t width = weight.dims[1];
  Tensor rows = out;  // the result as [indices, width]
  const Offsets starts = [&] {
    Tensor heads = out;
    heads.dims.pop_back();
    heads.strides.pop_back();
    return offsets_of(heads);
  }();
  rows.dims = {width};
  rows.strides = {out.strides.back()};
  if (out.elements() == 0) return;
  for (std::size_t i = 0; i < index.size(); ++i) {
    rows.data = out.data + starts[i] * bytes_of(out.type);
    copy(rows, weight.select(0, checked_index(index[i], weight.dims[0])));
  }
}
void run_embedding_backward(const Frame& f) {
  const Tensor grad = f.in(0), out = f.out();
  const Offsets index = load<int64_t>(f.in(1));
  const std::vector<double> g = load<double>(grad);
  const int64_t width = out.dims[1], padding = f.integer("padding_idx", -1);
  std::vector<double> gw(out.elements()), counts(out.dims[0]);
  for (const int64_t row : index) counts[checked_index(row, out.dims[0])] += 1;
  const bool scaled = f.flag("scale_grad_by_freq", false);
  for (std::size_t i = 0; i < index.size(); ++i) {
    if (index[i] == padding) continue;
    const double factor = scaled ? 1 / counts[index[i]] : 1;
    for (int64_t c = 0; c < width; ++c)
      gw[index[i] * width + c] += g[static_cast<int64_t>(i) * width + c] * factor;
  }
  store(out, gw);
}

void run_index_select(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  const Offsets index = load<int64_t>(f.in(1));
  if (in.rank() == 0) {
    for (const int64_t i : index) checked_index(i, 1);
    return copy(out, in);
  }
  const int64_t dim = wrap_dim(f.integer("dim", 0), in.rank());
  for (std::size_t i = 0; i < index.size(); ++i)
    copy(out.select(dim, static_cast<int64_t>(i)),
         in.select(dim, checked_index(index[i], in.dims[dim])));
}

Tensor at_least_1d(Tensor t) {
  if (t.dims.empty()) t.dims = {1}, t.strides = {1};
  return t;
}
void run_index_copy(const Frame& f) {
  const Tensor out = at_least_1d(f.out()), source = at_least_1d(f.in(2));
  copy(f.out(), f.in(0));
  const Offsets index = load<int64_t>(f.in(1));
  const int64_t dim = wrap_dim(f.integer("dim", 0), out.rank());
  if (out.elements() == 0) return;
  for (std::size_t i = 0; i < index.size(); ++i)
    copy(out.select(dim, checked_index(index[i], out.dims[dim])),
         source.select(dim, static_cast<int64_t>(i)));
}
void run_index_fill(const Frame& f) {
  const Tensor out = at_least_1d(f.out());
  copy(f.out(), f.in(0));
  const Offsets index = load<int64_t>(f.in(1));
  const int64_t dim = wrap_dim(f.integer("dim", 0), out.rank());
  if (out.elements() == 0) return;
  for (const int64_t i : index) {
    const Tensor slot = out.select(dim, wrapped_index(i, out.dims[dim]));
    if (f.has(2))
      copy(slot, f.in(2));
    else
      in_domain({out.type}, [&]<class T>(T) { fill(slot, f.scalar<T>("value", T(0))); });
  }
}
void run_index_add(const Frame& f) {
  const Tensor in = at_least_1d(f.in(0)), source = at_least_1d(f.in(2));
  const Offsets index = load<int64_t>(f.in(1));
  const int64_t dim = wrap_dim(f.integer("dim", 0), in.rank());
  in_domain({in.type}, [&]<class T>(T) {
    std::vector<T> v = load<T>(in.moved_last(dim));
    const std::vector<T> s = load<T>(source.moved_last(dim));
    const T alpha = f.scalar<T>("alpha", T(1));
    const auto count = static_cast<int64_t>(index.size());
    const int64_t size = in.dims[dim], rows = size ? static_cast<int64_t>(v.size()) / size : 0;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < count; ++i) {
        T& at = v[r * size + checked_index(index[i], size)];
        at = add(at, mul(alpha, s[r * count + i]));
      }
    store(at_least_1d(f.out()).moved_last(dim), v);
  });
}

// ---- Elements along one dimension ----

// For each element of `index` (row-major), the offset in `t` with coordinate `dim` replaced.
Offsets along(const Tensor& table, int64_t dim, const Tensor& index_in) {
  const Tensor t = at_least_1d(table), index = at_least_1d(index_in);
  const Offsets values = load<int64_t>(index);
  Tensor window = t;  // the index' dims over t's strides, without the dimension itself
  window.dims = index.dims;
  window.strides[dim] = 0;
  Offsets out = offsets_of(window);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] += checked_index(values[i], t.dims[dim]) * t.strides[dim];
  return out;
}
void run_gather(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  if (out.elements() == 0) return;
  const int64_t dim = wrap_dim(f.integer("dim", 0), in.rank());
  move_elements(out, offsets_of(out), in, along(in, dim, f.in(1)));
}

enum class Combine { kReplace, kSum, kProduct, kMean, kMaximum, kMinimum };
Combine combine_of(std::string_view name) {
  if (name == "sum" || name == "add") return Combine::kSum;
  if (name == "prod" || name == "multiply") return Combine::kProduct;
  if (name == "mean") return Combine::kMean;
  if (name == "amax") return Combine::kMaximum;
  if (name == "amin") return Combine::kMinimum;
  return Combine::kReplace;
}
int64_t floor_mean(int64_t sum, int64_t n) { return sum >= 0 ? sum / n : -((-sum + n - 1) / n); }
template <class T>
T combined(Combine how, T a, T b) {
  switch (how) {
    case Combine::kReplace:
      return b;
    case Combine::kProduct:
      return mul(a, b);
    case Combine::kMaximum:
    case Combine::kMinimum:
      if constexpr (std::is_same_v<T, Complex>) {
        return b;  // of no order: the framework refuses it
      } else {
        const bool is_first = how == Combine::kMaximum ? a > b : a < b;
        return a != a || is_first ? a : b;
      }
    default:
      return add(a, b);
  }
}

// self, index[, src] -> self with src (or attribute "value") combined in.
void scatter(const Frame& f, Combine how, bool include_self, int64_t index_operand) {
  const Tensor in = f.in(0), out = f.out();
  const Tensor index = at_least_1d(f.in(index_operand));
  const int64_t dim = wrap_dim(f.integer("dim", 0), in.rank());
  Tensor dense = at_least_1d(in);
  dense.strides = dense_strides(dense.dims);
  const Offsets at = index.elements() ? along(dense, dim, index) : Offsets{};
  in_domain({in.type}, [&]<class T>(T) {
    std::vector<T> v = load<T>(in), s(at.size(), f.scalar<T>("value", T(0)));
    if (f.has(index_operand + 1) && !at.empty()) {  // else the source may be of any sizes
      Tensor source = at_least_1d(f.in(index_operand + 1));
      if (source.dims.size() == index.dims.size() && !f.in(index_operand + 1).dims.empty())
        source.dims = index.dims;  // the part of src that the index covers
      else
        source = source.broadcast(index.dims);
      s = load<T>(source);
    }
    std::vector<int64_t> counts;
    if (!include_self || how == Combine::kMean) {
      counts.assign(v.size(), include_self ? 1 : 0);
      for (const int64_t i : at) {
        if (!include_self && counts[i] == 0) {
          v[i] = how == Combine::kProduct ? T(1) : T(0);
          if constexpr (!std::is_same_v<T, Complex>) {
            if (how == Combine::kMaximum)
              v[i] = std::is_same_v<T, double> ? T(-std::numeric_limits<double>::infinity())
                                               : std::numeric_limits<T>::lowest();
            if (how == Combine::kMinimum)
              v[i] = std::is_same_v<T, double> ? T(std::numeric_limits<double>::infinity())
                                               : std::numeric_limits<T>::max();
          }
        }
        ++counts[i];
      }
    }
    for (std::size_t i = 0; i < at.size(); ++i) v[at[i]] = combined(how, v[at[i]], s[i]);
    if (how == Combine::kMean)
      for (std::size_t i = 0; i < v.size(); ++i) {
        if (counts[i] <= 1) continue;
        if constexpr (std::is_same_v<T, int64_t>) {
          v[i] = floor_mean(v[i], counts[i]);
        } else {
          v[i] /= static_cast<double>(counts[i]);
        }
      }
    store(out, v);
  });
}
void run_scatter(const Frame& f) { scatter(f, Combine::kReplace, true, 1); }
void run_scatter_add(const Frame& f) { scatter(f, Combine::kSum, true, 1); }
void run_scatter_reduce(const Frame& f) {
  scatter(f, combine_of(f.text("reduce", "")), f.flag("include_self", true), 1);
}

// The index is one-dimensional; as scatter along dim with the source's shape.
void run_index_reduce(const Frame& f) {
  const Tensor in = at_least_1d(f.in(0)), source = at_least_1d(f.in(2));
  const Offsets index = load<int64_t>(f.in(1));
  const int64_t dim = wrap_dim(f.integer("dim", 0), in.rank());
  const Combine how = combine_of(f.text("reduce", ""));
  const bool include_self = f.flag("include_self", true);
  in_domain({in.type}, [&]<class T>(T) {
    std::vector<T> v = load<T>(in.moved_last(dim));
    const std::vector<T> s = load<T>(source.moved_last(dim));
    const int64_t size = in.dims[dim], count = static_cast<int64_t>(index.size());
    std::vector<int64_t> counts(size, include_self ? 1 : 0);
    for (const int64_t i : index) ++counts[checked_index(i, size)];
    for (int64_t r = 0; size && r < static_cast<int64_t>(v.size()) / size; ++r) {
      std::vector<bool> seen(size, include_self);
      T* row = v.data() + r * size;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = checked_index(index[i], size);
        row[at] = seen[at] ? combined(how, row[at], s[r * count + i]) : s[r * count + i];
        seen[at] = true;
      }
      if (how == Combine::kMean)
        for (int64_t i = 0; i < size; ++i)
          if (counts[i] > 1) {
            if constexpr (std::is_same_v<T, int64_t>)
              row[i] = floor_mean(row[i], counts[i]);
            else
              row[i] /= static_cast<double>(counts[i]);
          }
    }
    store(at_least_1d(f.out()).moved_last(dim), v);
  });
}

// ---- Advanced indexing ----

// What indices select of a tensor: positions in row-major order of the selection's dims.
struct Selection {
  Shape dims;
  Offsets at;
};

// Boolean indices become the positions of their set elements, one index per dimension.
struct Index {
  int64_t dim;
  Tensor tensor;      // broadcast later
  Offsets positions;  // of a mask; tensor.data points here
};

// With `clamped`, indices outside are moved to the nearest element: a mask discards them later.
Selection select(const Frame& f, const Tensor& t, bool clamped = false) {
  std::vector<Index> indices;
  indices.reserve(16);
  int64_t dim = 0;
  for (int64_t i = 0; i < f.list_count(); ++i) {
    const int64_t operand = f.list_first() + i;
    if (!f.has(operand)) {
      ++dim;
      continue;
    }
    const Tensor index = f.in(operand);
    if (index.type != Type::kBool && index.type != Type::kU8) {
      indices.push_back({dim++, index, {}});
      continue;
    }
    const Offsets mask = load<int64_t>(index);
    const Shape strides = dense_strides(index.dims);
    for (int64_t d = 0; d < index.rank(); ++d) {
      Index& one = indices.emplace_back(Index{dim++, {}, {}});
      for (int64_t k = 0; k < static_cast<int64_t>(mask.size()); ++k)
        if (mask[k]) one.positions.push_back(k / strides[d] % index.dims[d]);
      one.tensor.type = Type::kI64;
      one.tensor.dims = {static_cast<int64_t>(one.positions.size())};
      one.tensor.strides = {1};
      one.tensor.data = reinterpret_cast<std::byte*>(one.positions.data());
    }
  }
  Shape common;
  for (const Index& i : indices) {
    const Shape& dims = i.tensor.dims;
    if (dims.size() > common.size()) common.insert(common.begin(), dims.size() - common.size(), 1);
    for (std::size_t k = 0; k < dims.size(); ++k) {
      int64_t& size = common[common.size() - dims.size() + k];
      if (size == 1) size = dims[k];
    }
  }
  // Adjacent indices leave their dims in place, others go first.
  bool adjacent = true;
  for (std::size_t k = 1; k < indices.size(); ++k)
    adjacent = adjacent && indices[k].dim == indices[k - 1].dim + 1;
  const int64_t place = adjacent && !indices.empty() ? indices[0].dim : 0;
  Tensor kept = t;  // the plain dims around the indexed ones, which walk with stride 0
  kept.dims.clear();
  kept.strides.clear();
  Shape index_strides(common.size(), 0);
  for (int64_t d = 0, k = 0; d <= t.rank(); ++d) {
    if (k == place) {
      kept.dims.insert(kept.dims.end(), common.begin(), common.end());
      kept.strides.insert(kept.strides.end(), common.size(), 0);
      k = -1;
    }
    if (d == t.rank()) break;
    const bool indexed =
        std::any_of(indices.begin(), indices.end(), [&](const Index& i) { return i.dim == d; });
    if (indexed) continue;
    kept.dims.push_back(t.dims[d]);
    kept.strides.push_back(t.strides[d]);
    if (k >= 0) ++k;
  }
  Selection s{kept.dims, offsets_of(kept)};
  for (const Index& i : indices) {
    // Seen over all of the selection's dims.
    Tensor wide = i.tensor.broadcast(common);
    Tensor over = wide;
    over.dims = s.dims;
    over.strides.assign(s.dims.size(), 0);
    std::copy(wide.strides.begin(), wide.strides.end(), over.strides.begin() + place);
    const Offsets values = load<int64_t>(over);
    const int64_t size = t.dims[i.dim];
    for (std::size_t k = 0; k < values.size(); ++k) {
      const int64_t value =
          clamped ? std::clamp<int64_t>(values[k], 0, std::max<int64_t>(size - 1, 0)) : values[k];
      s.at[k] += wrapped_index(value, size) * t.strides[i.dim];
    }
  }
  return s;
}

void run_index(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  if (out.elements() == 0) return;
  const Selection s = select(f, in);
  if (static_cast<int64_t>(s.at.size()) != out.elements())
    throw KernelError("index selects another number of elements than the result has");
  move_elements(out, offsets_of(out), in, s.at);
}
void run_index_put(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  Tensor dense = in;
  dense.strides = dense_strides(in.dims);
  const Selection s = select(f, dense);
  const int64_t values = f.list_first() + f.list_count();
  const bool accumulate = f.flag("accumulate", false);
  in_domain({in.type}, [&]<class T>(T) {
    std::vector<T> v = load<T>(in);
    if (!s.at.empty()) {
      Tensor source = f.in(values);
      while (source.dims.size() > s.dims.size() && source.dims[0] == 1) {
        source.dims.erase(source.dims.begin());
        source.strides.erase(source.strides.begin());
      }
      const std::vector<T> from = load<T>(source.broadcast(s.dims));
      for (std::size_t i = 0; i < s.at.size(); ++i)
        v[s.at[i]] = accumulate ? add(v[s.at[i]], from[i]) : from[i];
    }
    store(out, v);
  });
}

// self, mask, indices: elements where the mask is set, `fill` elsewhere.
void run_masked_index(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  if (out.elements() == 0) return;
  in_domain({in.type}, [&]<class T>(T) {
    std::vector<T> v(out.elements(), f.scalar<T>("fill", T(0)));
    if (in.elements() != 0) {
      Tensor dense = in;
      dense.strides = dense_strides(in.dims);
      const Selection s = select(f, dense, true);
      const std::vector<T> from = load<T>(in);
      const Offsets mask = load<int64_t>(f.in(1).broadcast(out.dims));
      for (std::size_t i = 0; i < v.size(); ++i)
        if (mask[i]) v[i] = from[s.at[i]];
    }
    store(out, v);
  });
}
// self, mask, indices, values: adds the values where the mask is set.
void run_masked_index_put(const Frame& f) {
  const Tensor in = f.in(0);
  Tensor dense = in;
  dense.strides = dense_strides(in.dims);
  in_domain({in.type}, [&]<class T>(T) {
    std::vector<T> v = load<T>(in);
    if (!v.empty()) {
      const Selection s = select(f, dense, true);
      const std::vector<T> from = load<T>(f.in(f.list_first() + f.list_count()).broadcast(s.dims));
      const Offsets mask = load<int64_t>(f.in(1).broadcast(s.dims));
      for (std::size_t i = 0; i < from.size(); ++i)
        if (mask[i]) v[s.at[i]] = add(v[s.at[i]], from[i]);
    }
    store(f.out(), v);
  });
}

// ---- Flat positions and masks ----

void run_take(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  if (out.elements() == 0) return;
  const Offsets places = offsets_of(in);
  Offsets at = load<int64_t>(f.in(1));
  for (int64_t& i : at) i = places[wrapped_index(i, in.elements())];
  move_elements(out, offsets_of(out), in, at);
}
void run_put(const Frame& f) {
  const Tensor in = f.in(0);
  const Offsets at = load<int64_t>(f.in(1));
  in_domain({in.type}, [&]<class T>(T) {
    std::vector<T> v = load<T>(in);
    const std::vector<T> source = load<T>(f.in(2));
    for (std::size_t i = 0; i < at.size(); ++i) {
      T& to = v[wrapped_index(at[i], in.elements())];
      to = f.flag("accumulate", false) ? add(to, source[i]) : source[i];
    }
    store(f.out(), v);
  });
}
void run_masked_scatter(const Frame& f) {
  const Tensor out = f.out();
  const Offsets mask = load<int64_t>(f.in(1).broadcast(out.dims));
  in_domain({out.type}, [&]<class T>(T) {
    std::vector<T> v = load<T>(f.in(0).broadcast(out.dims));
    const std::vector<T> source = load<T>(f.in(2));
    std::size_t next = 0;
    for (std::size_t i = 0; i < v.size(); ++i) {
      if (!mask[i]) continue;
      if (next >= source.size()) throw KernelError("masked_scatter: source is too short");
      v[i] = source[next++];
    }
    store(out, v);
  });
}

constexpr KernelRow kRows[] = {
    {"aten.embedding", run_embedding, true},
    {"aten.embedding_dense_backward", run_embedding_backward},
    {"aten.index_select", run_index_select, true},
    {"aten.index_copy", run_index_copy, true},
    {"aten.index_fill.int_Scalar", run_index_fill, true},
    {"aten.index_fill.int_Tensor", run_index_fill, true},
    {"aten.index_add", run_index_add, true},
    {"aten.index_reduce", run_index_reduce},
    {"aten.gather", run_gather, true},
    {"aten.scatter.src", run_scatter, true},
    {"aten.scatter.value", run_scatter, true},
    {"aten.scatter.reduce", run_scatter_reduce, true},
    {"aten.scatter.value_reduce", run_scatter_reduce, true},
    {"aten.scatter_add", run_scatter_add, true},
    {"aten.scatter_reduce.two", run_scatter_reduce, true},
    {"aten.index.Tensor", run_index, true},
    {"aten._unsafe_index.Tensor", run_index, true},
    {"aten.index_put", run_index_put, true},
    {"aten._unsafe_index_put", run_index_put, true},
    {"aten._unsafe_masked_index", run_masked_index, true},
    {"aten._unsafe_masked_index_put_accumulate", run_masked_index_put, true},
    {"aten.take", run_take, true},
    {"aten.put", run_put, true},
    {"aten.masked_scatter", run_masked_scatter, true},
};

}  // namespace

KernelRows indexing_kernels() { return kRows; }

}  // namespace backplane::reference
