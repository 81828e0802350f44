#include "library_product.hpp"

namespace backplane::kernels {
namespace {

// More launches than that, one for each step of the batch that strides cannot express, cost more
// than generated kernels.
constexpr std::int64_t kMostLaunches = 64;

// A matrix of a batch, as it lies.
struct Matrix {
  TensorView tensor;
  Shape batch_strides;  // 0: the same for all
  std::int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;

  // Whether a library can read it; strides of dims of size 1 are made to fit.
  bool make_regular() {
    if (column_stride == 1 || columns == 1) {
      const std::int64_t pitch = rows == 1 ? columns : row_stride;
      if (pitch >= columns) {
        row_stride = pitch;
        column_stride = 1;
        return true;
      }
    }
    if (row_stride == 1 || rows == 1) {
      const std::int64_t pitch = columns == 1 ? rows : column_stride;
      if (pitch >= rows) {
        column_stride = pitch;
        row_stride = 1;
        return true;
      }
    }
    return false;
  }
};

Matrix matrix_of(const Factor& f, std::int64_t rows, std::int64_t columns) {
  return {*f.tensor, f.batch_strides, rows, columns, f.row_stride, f.column_stride};
}

// A factor in memory of this call, in the order of its rows.
struct Packed {
  const Factor* from = nullptr;  // null: it is read where it lies
  TensorView to;
};
Matrix choose(Builder& builder, const Gemm& g, const Factor& f, Storage storage, std::int64_t rows,
              std::int64_t columns, Packed& packed) {
  if (is_plain(f) && f.tensor->storage == storage)
    if (Matrix m = matrix_of(f, rows, columns); m.make_regular()) return m;
  Shape dims = packed_batch(g.batch, f);
  dims.insert(dims.end(), {rows, columns});
  packed = {&f, builder.scratch(storage, dims)};
  Matrix m = matrix_of(Factor::matrix(packed.to), rows, columns);
  m.make_regular();
  return m;
}

// The result, where the library can write it: rows that are several dims lie like one.
std::optional<Matrix> write_in_place(const Gemm& g, Storage storage) {
  if (!g.result || (g.result->storage != storage && g.result->storage != Storage::kF32))
    return std::nullopt;
  const TensorView& t = *g.result;
  const std::size_t batch = g.batch.size(), last = t.dims.size() - 1;
  if (t.dims.size() != batch + g.rows.size() + 1) return std::nullopt;
  std::int64_t row_stride = 0, expected = 0;
  for (std::size_t d = last; d-- > batch;) {
    if (t.dims[d] == 1) continue;
    if (row_stride == 0)
      row_stride = t.strides[d];
    else if (t.strides[d] != expected)
      return std::nullopt;
    expected = t.strides[d] * t.dims[d];
  }
  Matrix m{t,
           Shape(t.strides.begin(), t.strides.begin() + static_cast<std::ptrdiff_t>(batch)),
           product(g.rows),
           g.columns,
           row_stride,
           t.strides[last]};
  if (!m.make_regular() || m.column_stride != 1) return std::nullopt;
  return m;
}

// How many of the last batch dims are one for all of `matrices`: their strides step on evenly.
std::size_t joined_dims(const Shape& batch, std::initializer_list<const Matrix*> matrices) {
  std::size_t joined = 0;
  std::vector<std::int64_t> expected(matrices.size(), -1);
  for (std::size_t d = batch.size(); d-- > 0; ++joined) {
    if (batch[d] == 1) continue;
    std::size_t i = 0;
    for (const Matrix* m : matrices) {
      const std::int64_t stride = m->batch_strides[d];
      if (expected[i] >= 0 && stride != expected[i]) return joined;
      expected[i++] = stride * batch[d];
    }
  }
  return joined;
}
std::int64_t innermost_stride(const Shape& batch, std::size_t first, const Matrix& m) {
  for (std::size_t d = batch.size(); d-- > first;)
    if (batch[d] != 1) return m.batch_strides[d];
  return 0;
}
ProductMatrix as_product_matrix(const Matrix& m, std::int64_t batch_stride) {
  return {m.tensor.storage, batch_stride, m.row_stride, m.column_stride};
}
Argument moved(Argument argument, std::int64_t elements, Storage storage) {
  argument.offset += static_cast<std::uint64_t>(elements) *
                     static_cast<std::uint64_t>(kernelgen::storage_bytes(storage));
  return argument;
}

}  // namespace

Result<bool> add_library_product(Builder& builder, const Gemm& g) {
  const auto storage = storage_of(builder.step().node().operand(0).dtype());
  if (!storage || kernelgen::compute_type(*storage) != kernelgen::Type::kF32 ||
      !kernelgen::is_float(*storage) || g.panels)
    return false;
  Packed packed[2];
  const std::int64_t rows = product(g.rows);
  const Matrix left = choose(builder, g, g.a, *storage, rows, g.depth, packed[0]),
               right = choose(builder, g, g.b, *storage, g.depth, g.columns, packed[1]);
  auto result = write_in_place(g, *storage);
  const bool in_place = result.has_value();
  if (!in_place) {
    Shape dims = g.batch;
    dims.insert(dims.end(), {rows, g.columns});
    const TensorView sums = builder.scratch(g.rounds ? *storage : Storage::kF32, dims);
    result = matrix_of(Factor::matrix(sums), rows, g.columns);
    result->make_regular();
  }
  const bool has_bias = g.bias && g.bias->storage == result->tensor.storage &&
                        g.bias->argument.kind != Argument::kOperandValue &&
                        (g.bias->strides[0] == 1 || g.columns == 1);
  if (g.bias && in_place && !has_bias) return false;
  const std::size_t joined = joined_dims(g.batch, {&left, &right, &*result});
  const std::size_t apart = g.batch.size() - joined;
  const Shape outer(g.batch.begin(), g.batch.begin() + static_cast<std::ptrdiff_t>(apart));
  const std::int64_t launches = product(outer);
  if (launches > kMostLaunches) return false;
  ProductShape shape;
  shape.batch = product(g.batch) / std::max<std::int64_t>(launches, 1);
  shape.rows = rows;
  shape.columns = g.columns;
  shape.depth = g.depth;
  shape.left = as_product_matrix(left, innermost_stride(g.batch, apart, left));
  shape.right = as_product_matrix(right, innermost_stride(g.batch, apart, right));
  shape.result = as_product_matrix(*result, innermost_stride(g.batch, apart, *result));
  shape.has_bias = has_bias;
  const auto prepared = builder.target().library_product(shape);
  if (prepared == nullptr) return false;

  for (const Packed& one : packed)
    if (one.from != nullptr) BP_SDK_RETURN_IF_ERROR(pack_factor(builder, *one.from, one.to));
  const Argument workspace =
      Argument::scratch(builder.launches().reserve(prepared->workspace_bytes()));
  for (std::int64_t i = 0; i < launches; ++i) {
    std::int64_t at[3] = {0, 0, 0}, rest = i;
    const Matrix* const matrices[] = {&left, &right, &*result};
    for (std::size_t d = apart; d-- > 0; rest /= outer[d])
      for (std::size_t m = 0; m < 3; ++m) at[m] += rest % outer[d] * matrices[m]->batch_strides[d];
    Launch launch;
    launch.product = prepared;
    const auto matrix = [&](std::size_t m) {
      return moved(matrices[m]->tensor.argument, at[m], matrices[m]->tensor.storage);
    };
    launch.arguments = {matrix(0), matrix(1), has_bias ? g.bias->argument : Argument::bits(0),
                        matrix(2), workspace};
    builder.launches().add(std::move(launch));
  }
  if (in_place) return true;
  TensorView sums = result->tensor;
  sums.dims = g.batch;
  sums.dims.insert(sums.dims.end(), g.rows.begin(), g.rows.end());
  sums.dims.push_back(g.columns);
  sums.strides = sdk::row_major(sums.dims);
  Draft d(builder, sums.dims);
  const Expr sum = d.load(sums, d.outer());
  BP_SDK_RETURN_IF_ERROR(has_bias ? g.epilogue(d, sum, d.outer()) : g.finish(d, sum, d.outer()));
  BP_SDK_RETURN_IF_ERROR(d.finish());
  return true;
}

}  // namespace backplane::kernels
