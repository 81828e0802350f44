// Sorting, order statistics, searching and counting. A NaN is greater than every number.
#include <backplane/sdk/selection.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernel_registry.h"
#include "kernels/indexing.h"
#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

using std::int64_t;
using Order = std::vector<int64_t>;

template <class T>
bool before(T a, T b) {
  return a < b || (b != b && a == a);
}

// Positions of a run in rising or falling order; equals keep theirs.
template <class T>
Order sorted_order(const T* v, int64_t n, bool descending) {
  Order order(n);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return descending ? before(v[b], v[a]) : before(v[a], v[b]);
  });
  return order;
}

// The first k of each run in order: values and positions. Either result may be -1: none.
template <class MakeOrder>
void write_first(const Frame& f, int64_t dim, int64_t k, int64_t values, int64_t positions,
                 const MakeOrder& make_order) {
  const Tensor in = f.in(0).moved_last(dim);
  const int64_t n = in.dims.back(), rows = n ? in.elements() / n : 0;
  in_real_domain(in.type, [&]<class T>(T) {
    const std::vector<T> v = load<T>(in);
    std::vector<T> best;
    Order at;
    for (int64_t r = 0; r < rows; ++r) {
      const Order order = make_order(v.data() + r * n, n);
      for (int64_t i = 0; i < k; ++i) {
        at.push_back(order[i]);
        best.push_back(v[r * n + order[i]]);
      }
    }
    if (values >= 0 && f.wants(values)) store(f.out(values).moved_last(dim), best);
    if (positions >= 0 && f.wants(positions)) store(f.out(positions).moved_last(dim), at);
  });
}
void write_sorted(const Frame& f, int64_t dim, bool descending, int64_t k, int64_t values,
                  int64_t positions) {
  write_first(f, dim, k, values, positions,
              [&](const auto* v, int64_t n) { return sorted_order(v, n, descending); });
}
int64_t run_length(const Frame& f, int64_t dim) { return f.in(0).moved_last(dim).dims.back(); }
void run_sort(const Frame& f) {
  const int64_t dim = f.integer("dim", -1);
  write_sorted(f, dim, f.flag("descending", false), run_length(f, dim), 0, 1);
}
void run_argsort(const Frame& f) {
  const int64_t dim = f.integer("dim", -1);
  write_sorted(f, dim, f.flag("descending", false), run_length(f, dim), -1, 0);
}
void run_msort(const Frame& f) { write_sorted(f, 0, false, run_length(f, 0), 0, -1); }
template <class T>
Order largest_first(const T* v, int64_t n, bool descending, int64_t k) {
  Order order(n);
  std::iota(order.begin(), order.end(), int64_t{0});
  sdk::select_as_topk(order, k, [&](int64_t a, int64_t b) {
    return descending ? before(v[b], v[a]) : before(v[a], v[b]);
  });
  return order;
}
void run_topk(const Frame& f) {
  // Of a tensor without dims that is its element, even where none is asked for.
  const int64_t k = f.in(0).rank() == 0 ? 1 : f.integer("k", 1);
  write_first(f, f.integer("dim", -1), k, 0, 1, [&](const auto* v, int64_t n) {
    return largest_first(v, n, f.flag("largest", true), k);
  });
}

// pick(values of a run, its rising order) -> position.
template <class F>
void pick_each(const Frame& f, int64_t dim, bool all, F&& pick) {
  Tensor in = f.in(0).moved_last(dim);
  int64_t n = in.dims.back();
  if (all) n = in.elements();
  const int64_t rows = n ? in.elements() / n : 0;
  in_real_domain(in.type, [&]<class T>(T) {
    const std::vector<T> v = load<T>(all ? f.in(0) : in);
    std::vector<T> values;
    Order at;
    for (int64_t r = 0; r < rows; ++r) {
      const T* run = v.data() + r * n;
      at.push_back(pick(run, sorted_order(run, n, false)));
      values.push_back(run[at.back()]);
    }
    // No element: what the framework fills in.
    if (all && n == 0) {
      const double nothing = std::nan("");
      store(f.out(0), &nothing);
    } else {
      store(f.out(0), values);
    }
    if (f.wants(1)) store(f.out(1), at);
  });
}
// Brings the element of rank k (from 0) to its place by the steps of PyTorch's quickselect: which
// of several equals that is follows from them.
template <class T>
void quickselect(const T* v, Order& order, int64_t k) {
  const auto is_above = [&](int64_t a, int64_t b) {
    const T x = v[order[a]], y = v[order[b]];
    return (x != x && y == y) || x > y;
  };
  const auto swap = [&](int64_t a, int64_t b) { std::swap(order[a], order[b]); };
  int64_t left = 0, right = std::ssize(order) - 1;
  while (right > left + 1) {
    swap(left + (right - left) / 2, left + 1);
    if (is_above(left + 1, right)) swap(left + 1, right);
    if (is_above(left, right)) swap(left, right);
    if (is_above(left + 1, left)) swap(left + 1, left);
    int64_t i = left + 1, j = right;
    while (true) {
      do ++i;
      while (is_above(left, i));
      do --j;
      while (is_above(j, left));
      if (j < i) break;
      swap(i, j);
    }
    swap(left, j);
    if (j <= k) left = i;
    if (j >= k) right = j - 1;
  }
  if (right == left + 1 && is_above(left, right)) swap(left, right);
}
void run_kthvalue(const Frame& f) {
  const int64_t k = f.integer("k", 1);
  pick_each(f, f.integer("dim", -1), false, [&](const auto* v, const Order& sorted) {
    Order order(sorted.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    quickselect(v, order, k - 1);
    return order[k - 1];
  });
}
template <bool kIgnoresNan, bool kAll>
void run_median(const Frame& f) {
  pick_each(f, kAll ? 0 : f.integer("dim", -1), kAll, [](const auto* v, const Order& order) {
    auto n = static_cast<int64_t>(order.size());
    int64_t numbers = 0;
    while (numbers < n && v[order[numbers]] == v[order[numbers]]) ++numbers;
    if (kIgnoresNan) return order[std::max<int64_t>(0, (numbers - 1) / 2)];
    return numbers < n ? order[numbers] : order[(n - 1) / 2];
  });
}
// The smallest of the most frequent values; its last position.
void run_mode(const Frame& f) {
  pick_each(f, f.integer("dim", -1), false, [](const auto* v, const Order& order) {
    int64_t best = 0, best_count = 0, count = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      count = i && v[order[i]] == v[order[i - 1]] ? count + 1 : 1;
      if (count > best_count) {
        best_count = count;
        best = order[i];
      }
    }
    return best;
  });
}

// ---- Searching ----

template <class T>
int64_t insertion_point(const T* sorted, const int64_t* order, int64_t n, T v, bool right) {
  int64_t low = 0, high = n;
  while (low < high) {
    const int64_t mid = (low + high) / 2;
    const T m = sorted[order ? order[mid] : mid];
    if (right ? !(m > v) : !(m >= v))
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}
// Values of operand or attribute "self" among the sorted boundaries.
void search(const Frame& f, int64_t boundaries, int64_t values, int64_t sorter) {
  const Tensor sorted = f.in(boundaries);
  const bool right = f.flag("right", false) || f.text("side", "left") == "right";
  const bool given = values < f.operand_count() && f.has(values) && !f.present("self");
  const Type type = given ? promote(sorted.type, f.in(values).type)
                    : f.attribute("self")->kind == BP_ATTRIBUTE_FLOAT ? Type::kF64
                                                                      : sorted.type;
  in_real_domain(type, [&]<class T>(T) {
    const std::vector<T> s = load<T>(sorted);
    const std::vector<T> v =
        given ? load<T>(f.in(values)) : std::vector<T>{f.scalar<T>("self", T(0))};
    const Order order = sorter >= 0 && f.has(sorter) ? load<int64_t>(f.in(sorter)) : Order{};
    const int64_t n = sorted.dims.empty() ? 1 : sorted.dims.back();
    for (const int64_t one : order) checked_index(one, n);
    const int64_t rows = n ? static_cast<int64_t>(s.size()) / n : 1;
    const int64_t per_row = sorted.rank() <= 1
                                ? static_cast<int64_t>(v.size())
                                : static_cast<int64_t>(v.size()) / std::max<int64_t>(rows, 1);
    Order out(v.size());
    for (int64_t i = 0; i < static_cast<int64_t>(v.size()); ++i) {
      const int64_t row = sorted.rank() <= 1 ? 0 : i / per_row;
      out[i] = insertion_point(s.data() + row * n, order.empty() ? nullptr : order.data() + row * n,
                               n, v[i], right);
    }
    store(f.out(), out);
  });
}
void run_searchsorted(const Frame& f) {
  search(f, 0, 1, f.operand_count() - 1 > 1 ? f.operand_count() - 1 : -1);
}
void run_searchsorted_scalar(const Frame& f) {
  search(f, 0, f.operand_count(), f.operand_count() > 1 ? f.operand_count() - 1 : -1);
}
void run_bucketize(const Frame& f) {
  if (f.present("self"))
    search(f, f.operand_count() - 1, f.operand_count(), -1);
  else
    search(f, 1, 0, -1);
}

void run_isin(const Frame& f) {
  const bool invert = f.flag("invert", false);
  const Attribute* element = f.attribute("element");
  const Attribute* test = f.attribute("test_element");
  const Tensor first = f.in(0);
  const Attribute* const number = element ? element : test;
  const bool is_fraction = number && number->kind == BP_ATTRIBUTE_FLOAT && !is_float(first.type);
  const Type type = is_fraction ? Type::kF64
                    : number    ? first.type
                                : promote(first.type, f.in(1).type);
  in_real_domain(type, [&]<class T>(T) {
    std::vector<T> v, tests;
    if (element)
      v = {f.scalar<T>("element", T(0))};
    else
      v = load<T>(first);
    if (test)
      tests = {f.scalar<T>("test_element", T(0))};
    else
      tests = load<T>(f.in(f.operand_count() - 1));
    std::sort(tests.begin(), tests.end(), before<T>);
    Order out;
    for (const T x : v)
      out.push_back(std::binary_search(tests.begin(), tests.end(), x, before<T>) && x == x
                        ? !invert
                        : invert);
    store(f.out(), out);
  });
}

// ---- Counting ----

void run_one_hot(const Frame& f) {
  const Order v = load<int64_t>(f.in(0));
  const int64_t classes = f.out().dims.back();
  Order out(f.out().elements());
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (v[i] < 0 || v[i] >= classes) throw KernelError("one_hot: class out of range");
    out[static_cast<int64_t>(i) * classes + v[i]] = 1;
  }
  store(f.out(), out);
}
void run_nonzero_static(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  const int64_t size = out.dims[0], rank = in.rank();
  const Shape strides = dense_strides(in.dims);
  Order found;
  in_domain({in.type}, [&]<class T>(T) {
    const std::vector<T> v = load<T>(in);
    for (int64_t i = 0; i < static_cast<int64_t>(v.size()); ++i)
      if (v[i] != T(0))
        for (int64_t d = 0; d < rank; ++d) found.push_back(i / strides[d] % in.dims[d]);
  });
  found.resize(size * rank, f.integer("fill_value", -1));
  store(out, found);
}

constexpr KernelRow kRows[] = {
    {"aten.sort", run_sort},
    {"aten.sort.stable", run_sort},
    {"aten.argsort", run_argsort},
    {"aten.argsort.stable", run_argsort},
    {"aten.msort", run_msort},
    {"aten.topk", run_topk},
    {"aten.kthvalue", run_kthvalue},
    {"aten.median", run_median<false, true>},
    {"aten.median.dim", run_median<false, false>},
    {"aten.nanmedian", run_median<true, true>},
    {"aten.nanmedian.dim", run_median<true, false>},
    {"aten.mode", run_mode},
    {"aten.searchsorted.Tensor", run_searchsorted},
    {"aten.searchsorted.Scalar", run_searchsorted_scalar},
    {"aten.bucketize.Tensor", run_bucketize},
    {"aten.bucketize.Scalar", run_bucketize},
    {"aten.isin.Tensor_Tensor", run_isin},
    {"aten.isin.Tensor_Scalar", run_isin},
    {"aten.isin.Scalar_Tensor", run_isin},
    {"aten.one_hot", run_one_hot},
    {"aten.nonzero_static", run_nonzero_static, true},
};

}  // namespace

KernelRows sorting_kernels() { return kRows; }

}  // namespace backplane::reference
