// Ops that the framework usually takes apart, where they arrive whole.
#include "kernel_registry.h"
#include "kernels/gemm.h"
#include "kernels/indexing.h"
#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

// A diagonal tensor out of the last dimension.
void run_diag_embed(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  fill<int64_t>(out, 0);
  if (in.elements() == 0) return;
  const int64_t d1 = wrap_dim(f.integer("dim1", -2), out.rank());
  const int64_t d2 = wrap_dim(f.integer("dim2", -1), out.rank());
  const int64_t offset = f.integer("offset", 0);
  Tensor to = out;
  to.data +=
      (offset >= 0 ? offset * out.strides[d2] : -offset * out.strides[d1]) * bytes_of(out.type);
  for (const int64_t d : {std::max(d1, d2), std::min(d1, d2)}) {
    to.dims.erase(to.dims.begin() + d);
    to.strides.erase(to.strides.begin() + d);
  }
  to.dims.push_back(in.dims.back());
  to.strides.push_back(out.strides[d1] + out.strides[d2]);
  copy(to, in);
}

void run_block_diag(const Frame& f) {
  const Tensor out = f.out();
  fill<int64_t>(out, 0);
  int64_t row = 0, column = 0;
  for (int64_t i = 0; i < f.list_count(); ++i) {
    Tensor block = f.in(f.list_first() + i);
    while (block.dims.size() < 2) {
      block.dims.insert(block.dims.begin(), 1);
      block.strides.insert(block.strides.begin(), 0);
    }
    if (block.elements())
      copy(out.slice(0, row, block.dims[0]).slice(1, column, block.dims[1]), block);
    row += block.dims[0];
    column += block.dims[1];
  }
}

void run_narrow(const Frame& f) {
  const Tensor in = f.in(0);
  int64_t start = f.integer("start", 0);
  const int64_t size = in.size(f.integer("dim", 0));
  if (start < 0) start += size;
  copy(f.out(), in.slice(f.integer("dim", 0), start, f.integer("length", 0)));
}
// Pieces along a dimension; their sizes are those of the results.
void run_pieces(const Frame& f) {
  const Tensor in = f.in(0);
  const int64_t dim = wrap_dim(f.integer("dim", 0), in.rank());
  int64_t at = 0;
  for (int64_t i = 0; i < f.result_count(); ++i) {
    if (!f.wants(i)) throw KernelError(BP_UNSUPPORTED, "a piece of unknown size");
    const Tensor out = f.out(i);
    if (out.elements()) copy(out, in.slice(dim, at, out.dims[dim]));
    at += out.dims[dim];
  }
}

Tensor reordered(const Tensor& in, const Shape& source, const Shape& destination) {
  Shape order(in.dims.size(), -1);
  std::vector<bool> used(in.dims.size(), false);
  for (std::size_t i = 0; i < source.size(); ++i) {
    const int64_t from = wrap_dim(source[i], in.rank());
    order[wrap_dim(destination[i], in.rank())] = from;
    used[from] = true;
  }
  std::size_t next = 0;
  for (int64_t& d : order) {
    if (d >= 0) continue;
    while (used[next]) ++next;
    d = static_cast<int64_t>(next++);
  }
  return in.permuted(order);
}
void run_movedim(const Frame& f) {
  const Tensor in = f.in(0);
  copy(f.out(), in.rank() ? reordered(in, f.ints("source"), f.ints("destination")) : in);
}
void run_swap(const Frame& f) {
  const Tensor in = f.in(0);
  const int64_t a = f.integer("axis0", 0), b = f.integer("axis1", 0);
  copy(f.out(), in.rank() ? reordered(in, {a, b}, {b, a}) : in);
}
void run_reverse_dims(const Frame& f) {
  const Tensor in = f.in(0);
  Shape order;
  for (int64_t d = in.rank(); d-- > 0;) order.push_back(d);
  copy(f.out(), in.permuted(order));
}
template <bool kConjugate>
void run_matrix_transpose(const Frame& f) {
  const Tensor in = f.in(0);
  const Tensor flipped = in.rank() < 2 ? in : reordered(in, {-1}, {-2});
  if (!kConjugate || !is_complex(in.type)) return copy(f.out(), flipped);
  std::vector<Complex> v = load<Complex>(flipped);
  for (Complex& x : v) x = std::conj(x);
  store(f.out(), v);
}

// The first elements in order; the rest is unspecified.
void run_resize(const Frame& f) {
  in_domain({f.in(0).type}, [&]<class T>(T) {
    std::vector<T> v = load<T>(f.in(0));
    v.resize(static_cast<std::size_t>(f.out().elements()), T(0));
    store(f.out(), v);
  });
}

void run_outer(const Frame& f) {
  Tensor a = f.in(0);
  a.dims.push_back(1);
  a.strides.push_back(0);
  const Shape dims = f.out().dims;
  in_domain({f.out().type}, [&]<class T>(T) {
    std::vector<T> x = load<T>(a.broadcast(dims));
    const std::vector<T> y = load<T>(f.in(1).broadcast(dims));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = mul(x[i], y[i]);
    store(f.out(), x);
  });
}

// self of any rank times other of any rank, batches broadcast.
void run_matmul(const Frame& f) {
  Tensor a = f.in(0), b = f.in(1), out = f.out();
  if (a.rank() == 1) {
    a.dims.insert(a.dims.begin(), 1), a.strides.insert(a.strides.begin(), 0);
    out.dims.insert(out.dims.end() - (b.rank() == 1 ? 0 : 1), 1);
    out.strides.insert(out.strides.end() - (b.rank() == 1 ? 0 : 1), 0);
  }
  if (b.rank() == 1) {
    b.dims.push_back(1), b.strides.push_back(0);
    out.dims.push_back(1), out.strides.push_back(0);
  }
  const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  if (out.elements() == 0) return;
  const Shape batch(out.dims.begin(), out.dims.end() - 2);
  const auto wide = [&](const Tensor& t) {
    Shape dims = batch;
    dims.insert(dims.end(), t.dims.end() - 2, t.dims.end());
    return t.broadcast(dims);
  };
  in_domain({out.type}, [&]<class T>(T) {
    const std::vector<T> x = load<T>(wide(a)), y = load<T>(wide(b));
    std::vector<T> z(out.elements(), T(0));
    for (int64_t i = 0; i < product(batch); ++i)
      gemm(m, n, k, x.data() + i * m * k, y.data() + i * k * n, z.data() + i * m * n);
    store(out, z);
  });
}

// repeats [n] -> each index as often as it says; or self with its elements repeated.
void run_repeat_interleave(const Frame& f) {
  const std::vector<int64_t> repeats = load<int64_t>(f.in(0));
  std::vector<int64_t> out;
  for (std::size_t i = 0; i < repeats.size(); ++i) {
    if (repeats[i] < 0) throw KernelError("repeats can not be negative");
    out.insert(out.end(), static_cast<std::size_t>(repeats[i]), static_cast<int64_t>(i));
  }
  store(f.out(), out);
}

// grad_output, mask: the gradients where mask is set, in order, zeros after them.
void run_masked_scatter_backward(const Frame& f) {
  const Tensor grad = f.in(0);
  const std::vector<int64_t> mask = load<int64_t>(f.in(1).broadcast(grad.dims));
  in_domain({grad.type}, [&]<class T>(T) {
    const std::vector<T> g = load<T>(grad);
    std::vector<T> out;
    for (std::size_t i = 0; i < g.size(); ++i)
      if (mask[i]) out.push_back(g[i]);
    out.resize(static_cast<std::size_t>(f.out().elements()), T(0));
    store(f.out(), out);
  });
}
// grad, indices -> zeros but for grad at the positions
void run_value_selecting_backward(const Frame& f) {
  const Tensor out = f.out();
  Tensor grad = f.in(0), index = f.in(1);
  fill<int64_t>(out, 0);
  if (out.elements() == 0) return;
  if (out.rank() == 0) return copy(out, grad);
  const int64_t dim = wrap_dim(f.integer("dim", 0), out.rank());
  if (f.flag("keepdim", false)) {
    grad = grad.select(dim, 0);
    index = index.select(dim, 0);
  }
  const Tensor rows = out.select(dim, 0);
  std::vector<int64_t> at = offsets_of(rows);
  const std::vector<int64_t> positions = load<int64_t>(index);
  for (std::size_t i = 0; i < at.size(); ++i)
    at[i] += checked_index(positions[i], out.dims[dim]) * out.strides[dim];
  move_elements(out, at, grad, offsets_of(grad));
}
void run_trace_backward(const Frame& f) {
  Tensor out = f.out();
  fill<int64_t>(out, 0);
  out.dims = {std::min(out.dims[0], out.dims[1])};
  out.strides = {out.strides[0] + out.strides[1]};
  copy(out, f.in(0));
}

// Quarter turns in the plane of two dimensions.
void run_rot90(const Frame& f) {
  Tensor in = f.in(0);
  if (in.elements() == 0) return;
  const Shape dims = f.ints("dims", 2, 0);
  const int64_t a = f.present("dims") ? wrap_dim(dims[0], in.rank()) : 0;
  const int64_t b = f.present("dims") ? wrap_dim(dims[1], in.rank()) : 1;
  const int64_t k = ((f.integer("k", 1) % 4) + 4) % 4;
  const auto flip = [&](int64_t d) { in = in.slice(d, in.dims[d] - 1, in.dims[d], -1); };
  if (k == 1 || k == 2) flip(b);
  if (k == 2 || k == 3) flip(a);
  if (k % 2) {
    std::swap(in.dims[a], in.dims[b]);
    std::swap(in.strides[a], in.strides[b]);
  }
  copy(f.out(), in);
}

// Pieces of every tensor, each padded to the same count, flattened and joined.
void run_chunk_cat(const Frame& f) {
  const Tensor out = f.out();
  const int64_t dim = f.integer("dim", 0), chunks = f.integer("num_chunks", 1);
  fill<int64_t>(out, 0);
  int64_t at = 0;
  for (int64_t i = 0; i < f.list_count(); ++i) {
    const Tensor in = f.in(f.list_first() + i);
    const int64_t d = wrap_dim(dim, in.rank()), size = in.dims[d];
    const int64_t per = (size + chunks - 1) / chunks;
    int64_t width = per;
    for (int64_t k = d + 1; k < in.rank(); ++k) width *= in.dims[k];
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t first = std::min(c * per, size), count = std::min(per, size - first);
      if (count == 0) continue;
      in_domain({in.type}, [&]<class T>(T) {
        Tensor to = out.select(d, c);
        const std::vector<T> v = load<T>(in.slice(d, first, count));
        const int64_t run = count * (width / per);
        store(to.slice(to.rank() - 1, at, run), v);
      });
    }
    at += width;
  }
}

constexpr KernelRow kRows[] = {
    {"aten.diag_embed", run_diag_embed, true},
    {"aten.block_diag", run_block_diag, true},
    {"aten.narrow", run_narrow, true},
    {"aten.narrow_copy", run_narrow, true},
    {"aten.tensor_split.sections", run_pieces, true},
    {"aten.chunk", run_pieces, true},
    {"aten.unsafe_chunk", run_pieces, true},
    {"aten.unsafe_split.Tensor", run_pieces, true},
    {"aten.unsafe_split_with_sizes", run_pieces, true},
    {"aten.split.sizes", run_pieces, true},
    {"aten.movedim.int", run_movedim, true},
    {"aten.movedim.intlist", run_movedim, true},
    {"aten.moveaxis.intlist", run_movedim, true},
    {"aten.swapaxes", run_swap, true},
    {"aten.numpy_T", run_reverse_dims, true},
    {"aten.mT", run_matrix_transpose<false>, true},
    {"aten.mH", run_matrix_transpose<true>, true},
    {"aten.adjoint", run_matrix_transpose<true>, true},
    {"aten.resize", run_resize, true},
    {"aten.resize_as", run_resize, true},
    {"aten.outer", run_outer, true},
    {"aten.matmul", run_matmul, true},
    {"aten.repeat_interleave.Tensor", run_repeat_interleave},
    {"aten.masked_scatter_backward", run_masked_scatter_backward, true},
    {"aten.value_selecting_reduction_backward", run_value_selecting_backward, true},
    {"aten.trace_backward", run_trace_backward, true},
    {"aten.rot90", run_rot90, true},
    {"aten._chunk_cat", run_chunk_cat, true},
};

}  // namespace

KernelRows composite_kernels() { return kRows; }

}  // namespace backplane::reference
