// Products of the element types that oneDNN has none for: float64 and integers. A row of the result
// at a time; meant to be right.
#include <type_traits>

#include "kernels/movement/dense_memory.h"
#include "kernels/primitives/matmul.h"
#include "kernels/rows/block.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;
using sdk::TensorSpec;

// A batch of matrices, by strides; batch dims of size 1 repeat.
struct Operand {
  std::size_t index = SIZE_MAX;
  Type type = Type::kF64;
  Shape batch;
  std::int64_t row = 0, column = 0;
};

template <class T>
class PlainMatmul : public sdk::Kernel {
 public:
  PlainMatmul(Shape batch, Operand left, Operand right, Operand added, Operand out, std::int64_t m,
              std::int64_t n, std::int64_t k, double alpha, double beta)
      : batch_(std::move(batch)),
        left_(std::move(left)),
        right_(std::move(right)),
        added_(std::move(added)),
        out_(std::move(out)),
        m_(m),
        n_(n),
        k_(k),
        alpha_(static_cast<T>(alpha)),
        beta_(static_cast<T>(beta)),
        threads_(omp_get_max_threads()) {}
  std::uint64_t scratch_bytes() const override {
    return static_cast<std::uint64_t>((2 * n_ + 8) * threads_) * sizeof(T);
  }
  sdk::Status run(const KernelCall& call) const override {
    const std::int64_t count = product(batch_) * m_;
    if (count * n_ == 0) return {};
    parallel_ranges(
        count, count * n_ * (k_ + 1), [&](int thread, std::int64_t begin, std::int64_t end) {
          T* sums = reinterpret_cast<T*>(call.scratch) + thread % threads_ * (2 * n_ + 8);
          for (std::int64_t u = begin; u < end; ++u) row(call, u / m_, u % m_, sums, sums + n_);
        });
    return {};
  }

 private:
  static constexpr Domain kDomain = std::is_same_v<T, double> ? Domain::kF64 : Domain::kI64;

  std::byte* at(std::byte* base, const Operand& o, std::int64_t batch, std::int64_t r,
                std::int64_t c) const {
    std::int64_t offset = r * o.row + c * o.column;
    for (std::size_t d = batch_.size(); d-- > 0;) {
      offset += batch % batch_[d] * o.batch[d];
      batch /= batch_[d];
    }
    return base + offset * bytes_of(o.type);
  }
  void row(const KernelCall& call, std::int64_t b, std::int64_t i, T* sums, T* line) const {
    std::fill(sums, sums + n_, T{0});
    for (std::int64_t p = 0; p < k_; ++p) {
      T scale;
      load_function(left_.type, kDomain)(&scale, at(call.operands[left_.index], left_, b, i, p), 1,
                                         1);
      load_function(right_.type, kDomain)(line, at(call.operands[right_.index], right_, b, p, 0),
                                          right_.column, n_);
      for (std::int64_t j = 0; j < n_; ++j) sums[j] += scale * line[j];
    }
    if (alpha_ != 1)
      for (std::int64_t j = 0; j < n_; ++j) sums[j] *= alpha_;
    if (added_.index != SIZE_MAX && beta_ != 0) {
      load_function(added_.type, kDomain)(line, at(call.operands[added_.index], added_, b, i, 0),
                                          added_.column, n_);
      for (std::int64_t j = 0; j < n_; ++j) sums[j] += beta_ * line[j];
    }
    store_function(out_.type, kDomain)(at(call.results[0], out_, b, i, 0), out_.column, sums, n_);
  }

  Shape batch_;
  Operand left_, right_, added_, out_;
  std::int64_t m_, n_, k_;
  T alpha_, beta_;
  std::int64_t threads_;
};

Operand operand_of(const TensorSpec& spec, std::size_t index, const Shape& dims,
                   std::size_t batch) {
  Operand o;
  o.index = index;
  o.type = known_type(spec.dtype);
  const Shape strides = broadcast_strides(spec, dims);
  o.batch.assign(strides.begin(), strides.begin() + static_cast<std::ptrdiff_t>(batch));
  o.row = strides[batch];
  o.column = strides[batch + 1];
  return o;
}

}  // namespace

sdk::Result<std::unique_ptr<sdk::Kernel>> make_plain_matmul_kernel(const StepContext& context,
                                                                   const MatmulRoles& roles) {
  const auto node = context.node();
  const auto position = [&](std::size_t which) {
    return context.position(node.operand_index(which));
  };
  TensorSpec a = context.value(node.operand_index(roles.left)),
             b = context.value(node.operand_index(roles.right)),
             c = context.value(node.result_index());
  // Vectors as matrices of one row or column.
  const auto append = [](TensorSpec& t) {
    t.dims.push_back(1);
    t.strides.push_back(0);
  };
  const auto prepend = [](TensorSpec& t) {
    t.dims.insert(t.dims.begin(), 1);
    t.strides.insert(t.strides.begin(), 0);
  };
  const bool column = b.rank() == 1;
  if (column) append(b);
  if (a.rank() == 1) {
    prepend(a);
    if (c.rank() == 0 || !column) prepend(c);
  }
  if (column) append(c);
  if (roles.right_transposed) {
    std::swap(b.dims[0], b.dims[1]);
    std::swap(b.strides[0], b.strides[1]);
  }
  const std::size_t batch = c.rank() - 2;
  const std::int64_t m = c.dims[batch], n = c.dims[batch + 1], k = a.dims.back();
  const auto with_batch = [&](std::int64_t rows, std::int64_t columns) {
    Shape dims(c.dims.begin(), c.dims.end() - 2);
    dims.push_back(rows);
    dims.push_back(columns);
    return dims;
  };
  Operand added;
  if (roles.added != SIZE_MAX && node.has_operand(roles.added)) {
    TensorSpec d = context.value(node.operand_index(roles.added));
    if (column && d.rank() > 0) append(d);
    added = operand_of(d, position(roles.added), c.dims, batch);
  }
  const Shape batch_dims(c.dims.begin(), c.dims.end() - 2);
  const Operand left = operand_of(a, position(roles.left), with_batch(m, k), batch),
                right = operand_of(b, position(roles.right), with_batch(k, n), batch),
                out = operand_of(c, 0, c.dims, batch);
  const double alpha = node.real_or("alpha", 1), beta = node.real_or("beta", 1);
  if (is_float(known_type(c.dtype)))
    return std::unique_ptr<sdk::Kernel>(std::make_unique<PlainMatmul<double>>(
        batch_dims, left, right, added, out, m, n, k, alpha, beta));
  return std::unique_ptr<sdk::Kernel>(std::make_unique<PlainMatmul<std::int64_t>>(
      batch_dims, left, right, added, out, m, n, k, alpha, beta));
}

}  // namespace backplane::onednn
