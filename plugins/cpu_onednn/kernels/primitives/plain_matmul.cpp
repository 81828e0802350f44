// Products of the element types that oneDNN has none for: float64 and integers. Blocks of the
// result, each summed over blocks of what is packed side by side.
#include <algorithm>
#include <type_traits>

#include "kernels/movement/dense_memory.h"
#include "kernels/primitives/matmul.h"
#include "kernels/rows/block.h"
#include "kernels/simd/vector_table.h"
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

  std::byte* at(std::byte* base, const Shape& batches, std::int64_t b, std::int64_t r,
                std::int64_t c) const {
    std::int64_t offset = r * row + c * column;
    for (std::size_t d = batches.size(); d-- > 0;) {
      offset += b % batches[d] * batch[d];
      b /= batches[d];
    }
    return base + offset * bytes_of(type);
  }
  Operand turned() const {
    Operand o = *this;
    std::swap(o.row, o.column);
    return o;
  }
};

template <class T>
constexpr Domain kDomainOf = std::is_same_v<T, double> ? Domain::kF64 : Domain::kI64;

template <class T>
class PlainMatmul : public sdk::Kernel {
 public:
  PlainMatmul(Shape batch, Operand left, Operand right, Operand added, Operand out, std::int64_t m,
              std::int64_t n, std::int64_t k, T alpha, T beta)
      : batch_(std::move(batch)),
        left_(std::move(left)),
        right_(std::move(right)),
        added_(std::move(added)),
        out_(std::move(out)),
        m_(m),
        n_(n),
        k_(k),
        alpha_(alpha),
        beta_(beta),
        threads_(omp_get_max_threads()) {}
  std::uint64_t scratch_bytes() const override {
    return static_cast<std::uint64_t>(thread_elements() * threads_) * sizeof(T);
  }
  sdk::Status run(const KernelCall& call) const override {
    if (product(batch_) * m_ * n_ == 0) return {};
    const std::int64_t row_blocks = (m_ + kRows - 1) / kRows;
    const std::int64_t column_blocks = (n_ + kColumns - 1) / kColumns;
    const std::int64_t units = product(batch_) * row_blocks * column_blocks;
    parallel_ranges(
        units, product(batch_) * m_ * n_ * (k_ + 1),
        [&](int thread, std::int64_t begin, std::int64_t end) {
          T* scratch = reinterpret_cast<T*>(call.scratch) + thread % threads_ * thread_elements();
          for (std::int64_t u = begin; u < end; ++u)
            block(call, u / column_blocks / row_blocks, u / column_blocks % row_blocks * kRows,
                  u % column_blocks * kColumns, scratch);
        });
    return {};
  }

 private:
  static constexpr Domain kDomain = kDomainOf<T>;
  static constexpr std::int64_t kRows = 96, kColumns = 128, kDepth = 256;
  static constexpr std::int64_t kFewRows = 16;  // for which packing does not pay

  std::int64_t rows() const { return std::min(kRows, m_); }
  std::int64_t columns() const { return (std::min(kColumns, n_) + kLanes - 1) / kLanes * kLanes; }
  std::int64_t depth() const { return std::min(kDepth, k_); }
  // Sums, a packed block of each operand, and a row of what is added.
  std::int64_t thread_elements() const {
    return (rows() + depth() + 1) * columns() + rows() * depth() + kLanes;
  }

  void block(const KernelCall& call, std::int64_t b, std::int64_t i, std::int64_t j,
             T* scratch) const {
    const std::int64_t m = std::min(kRows, m_ - i), n = std::min(kColumns, n_ - j);
    const std::int64_t width = columns();
    T *sums = scratch, *right = sums + rows() * width, *line = right + depth() * width,
      *left = line + width;
    const auto multiply = gemm();
    const LoadFunction load_left = load_function(left_.type, kDomain),
                       load_right = load_function(right_.type, kDomain);
    if (k_ == 0) std::fill_n(sums, m * width, T{0});
    for (std::int64_t p = 0; p < k_; p += kDepth) {
      const std::int64_t k = std::min(kDepth, k_ - p);
      const std::byte* from = left_.at(call.operands[left_.index], batch_, b, i, p);
      GemmArgs<T> args{sums, width, left, k, 1, right, width, m, n, k, p > 0};
      if (same_bits(right_.type, kDomain) && right_.column == 1 && n % kLanes == 0 &&
          m_ <= kFewRows) {
        args.right =
            reinterpret_cast<const T*>(right_.at(call.operands[right_.index], batch_, b, p, j));
        args.right_row = right_.row;
      } else {
        for (std::int64_t q = 0; q < k; ++q) {
          load_right(right + q * width, right_.at(call.operands[right_.index], batch_, b, p + q, j),
                     right_.column, n);
          std::fill(right + q * width + n, right + (q + 1) * width, T{0});
        }
      }
      if (same_bits(left_.type, kDomain)) {
        args.left = reinterpret_cast<const T*>(from);
        args.left_row = left_.row;
        args.left_column = left_.column;
      } else {
        for (std::int64_t r = 0; r < m; ++r)
          load_left(left + r * k, from + r * left_.row * bytes_of(left_.type), left_.column, k);
      }
      multiply(args);
    }
    for (std::int64_t r = 0; r < m; ++r) {
      T* row = sums + r * width;
      if (alpha_ != 1)
        for (std::int64_t c = 0; c < n; ++c) row[c] *= alpha_;
      if (added_.index != SIZE_MAX && beta_ != 0) {
        load_function(added_.type, kDomain)(
            line, added_.at(call.operands[added_.index], batch_, b, i + r, j), added_.column, n);
        for (std::int64_t c = 0; c < n; ++c) row[c] += beta_ * line[c];
      }
      store_function(out_.type, kDomain)(out_.at(call.results[0], batch_, b, i + r, j), out_.column,
                                         row, n);
    }
  }
  static auto gemm() {
    if constexpr (std::is_same_v<T, double>)
      return vector_table().gemm_f64;
    else
      return vector_table().gemm_i64;
  }

  Shape batch_;
  Operand left_, right_, added_, out_;
  std::int64_t m_, n_, k_;
  T alpha_, beta_;
  std::int64_t threads_;
};

// A matrix by a vector where the rows of the matrix, which is the one operand or the other turned,
// lie side by side.
template <class T>
class PlainMatrixVector : public sdk::Kernel {
 public:
  static bool suits(const Operand& matrix) {
    return same_bits(matrix.type, kDomainOf<T>) && matrix.column == 1;
  }
  PlainMatrixVector(Shape batch, Operand matrix, Operand vector, Operand added, Operand out,
                    std::int64_t rows, std::int64_t k, T alpha, T beta)
      : batch_(std::move(batch)),
        matrix_(std::move(matrix)),
        vector_(std::move(vector)),
        added_(std::move(added)),
        out_(std::move(out)),
        rows_(rows),
        k_(k),
        alpha_(alpha),
        beta_(beta) {}
  std::uint64_t scratch_bytes() const override {
    return static_cast<std::uint64_t>(k_ * product(batch_)) * sizeof(T);
  }
  sdk::Status run(const KernelCall& call) const override {
    const std::int64_t batches = product(batch_);
    auto* vectors = reinterpret_cast<T*>(call.scratch);
    for (std::int64_t b = 0; b < batches; ++b)
      load_function(vector_.type, kDomainOf<T>)(
          vectors + b * k_, vector_.at(call.operands[vector_.index], batch_, b, 0, 0), vector_.row,
          k_);
    const BlockFunction dot = block_function(Opcode::kRowDot, kDomainOf<T>);
    const StoreFunction store = store_function(out_.type, kDomainOf<T>);
    parallel_ranges(
        batches * rows_, batches * rows_ * (k_ + 1),
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t b = u / rows_, i = u % rows_;
            T sums[kLanes];  // the one sum, repeated
            dot({sums,
                 nullptr,
                 {matrix_.at(call.operands[matrix_.index], batch_, b, i, 0), vectors + b * k_},
                 {1, 1},
                 k_});
            T sum = sums[0] * alpha_;
            if (added_.index != SIZE_MAX && beta_ != 0) {
              T other;
              load_function(added_.type, kDomainOf<T>)(
                  &other, added_.at(call.operands[added_.index], batch_, b, i, 0), 1, 1);
              sum += beta_ * other;
            }
            store(out_.at(call.results[0], batch_, b, i, 0), 1, &sum, 1);
          }
        });
    return {};
  }

 private:
  Shape batch_;
  Operand matrix_, vector_, added_, out_;
  std::int64_t rows_, k_;
  T alpha_, beta_;
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
  const auto made = [&]<class T>(T) -> std::unique_ptr<sdk::Kernel> {
    const auto number = [&](std::string_view name) {
      if constexpr (std::is_same_v<T, double>)
        return node.real_or(name, 1);
      else
        return node.int_or(name, 1);
    };
    const T alpha = number("alpha"), beta = number("beta");
    if (n == 1 && PlainMatrixVector<T>::suits(left))
      return std::make_unique<PlainMatrixVector<T>>(batch_dims, left, right, added, out, m, k,
                                                    alpha, beta);
    if (m == 1 && PlainMatrixVector<T>::suits(right.turned()))
      return std::make_unique<PlainMatrixVector<T>>(batch_dims, right.turned(), left.turned(),
                                                    added.turned(), out.turned(), n, k, alpha,
                                                    beta);
    return std::make_unique<PlainMatmul<T>>(batch_dims, left, right, added, out, m, n, k, alpha,
                                            beta);
  };
  return is_float(known_type(c.dtype)) ? made(double{}) : made(std::int64_t{});
}

}  // namespace backplane::onednn
