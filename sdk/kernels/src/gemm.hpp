// Batched products C(b, m, n) = sum over k of A(b, m, k) B(b, k, n), in float32 registers, with
// what follows point by point.
#pragma once

#include <functional>

#include "builder.hpp"

namespace backplane::kernels {

// An element of a factor, as an expression of its indices in a draft.
using Element =
    std::function<Expr(Draft& draft, std::span<const Expr> batch, Expr row, Expr column)>;

struct Factor {
  Element element;
  // Where it is a plain tensor: strides of the batch dims, then of rows and of columns.
  std::optional<TensorView> tensor;
  Shape batch_strides;
  std::int64_t row_stride = 0, column_stride = 0;
  std::vector<bool> batched;  // per batch dim: whether the element depends on it

  // A tensor whose last two dims are the matrix; earlier ones the batch. `transposed` swaps them.
  static Factor matrix(const TensorView& tensor, bool transposed = false);
};

// Whether a kernel or a library can read it where it lies.
bool is_plain(const Factor& factor);
// Batch dims that it has when packed, and packing it: `packed` is [those…, rows, columns].
Shape packed_batch(const Shape& batch, const Factor& factor);
Status pack_factor(Builder& builder, const Factor& factor, const TensorView& packed);

struct Gemm {
  Shape batch;
  Shape rows;  // dims whose product is the number of rows, for the epilogue's axes
  std::int64_t columns = 1, depth = 1;
  Factor a, b;
  std::optional<TensorView> panels;  // b, where it is a weight packed before the call
  // Stores the results: `value` is C at axes (batch…, rows…, column).
  using Epilogue = std::function<Status(Draft& draft, Expr value, const Indices& axes)>;
  Epilogue epilogue;
  // Where the epilogue does nothing but store the value, at its own axes.
  std::optional<TensorView> result{};
  // A row that is added to each row of the sums before the epilogue.
  std::optional<TensorView> bias{};
  // The epilogue rounds the value to the node's type first, as PyTorch does between two nodes, or
  // may be given it so.
  bool rounds = false;

  Status finish(Draft& draft, Expr sum, const Indices& axes) const;
};

Status add_gemm(Builder& builder, const Gemm& gemm);

// A packed weight: the right factor of products, [panels, depth, width].
struct Panels {
  TensorView view;
  bool transposed;                                          // the factor is the weight's transpose
  Expr element(Draft& draft, Expr row, Expr column) const;  // of the factor
};
// Nothing where the operand is no packed weight.
Result<std::optional<Panels>> find_panels(Builder& builder, std::size_t operand);

}  // namespace backplane::kernels
