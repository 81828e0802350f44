#include "gemm.hpp"

#include <backplane/kernels/panels.hpp>

#include "gemm_text.hpp"
#include "library_product.hpp"
#include "register_tiles.hpp"
#include "side_by_side.hpp"
#include "text.hpp"
#include "transpose.hpp"

namespace backplane::kernels {
namespace {

// One tile has them all and reads the right factor once: packing would cost more than it brings.
constexpr std::int64_t kFewRows = 8;

// Few heights, so that sizes which change have few kernels. Rows beyond the last repeat it.
std::int64_t height(std::int64_t m, std::int64_t most) {
  for (const std::int64_t rows : {1, 2, 4, 6})
    if (m <= rows) return std::min(rows, most);
  return most;
}
std::int64_t sums(const Builder& builder) { return builder.facts().product_sums; }
Tile cpu_tile(const Builder& builder, std::int64_t m, std::int64_t vectors) {
  return {height(m, most_rows(sums(builder), vectors)), vectors, kLanes};
}
Tile choose_tile(const Builder& builder, std::int64_t m, std::int64_t n) {
  if (!builder.facts().has_vectors())
    return {std::min<std::int64_t>(m, 4), std::min<std::int64_t>(n, 4), 1};
  if (n <= kLanes) return cpu_tile(builder, m, 1);
  const std::int64_t usual = usual_vectors(sums(builder));
  const bool is_flat = m <= kFewRows && n > 2 * kLanes;
  return cpu_tile(builder, m, is_flat ? std::max<std::int64_t>(sums(builder) / 6, 1) : usual);
}

Shape with(Shape dims, std::initializer_list<std::int64_t> more) {
  dims.insert(dims.end(), more.begin(), more.end());
  return dims;
}
// The right factor as it lies, for few rows, and the tile for it.
std::optional<RightFactor> read_in_place(const Builder& builder, const Gemm& g, std::int64_t m,
                                         Tile& tile) {
  if (m > kFewRows || tile.lanes != kLanes || !is_plain(g.b) ||
      g.b.tensor->storage != Storage::kF32)
    return std::nullopt;
  RightFactor right{RightFactor::kRows, g.b.tensor->argument, g.b.batch_strides, g.b.row_stride};
  Tile fitting{height(m, kFewRows), tile.vectors, kLanes};
  if (g.b.column_stride == 1) {
    const auto fits = [&] {
      return g.columns % fitting.columns() == 0 &&
             fitting.rows <= most_rows(sums(builder), fitting.vectors);
    };
    while (fitting.vectors > 1 && !fits()) --fitting.vectors;
    fitting.rows = std::min(fitting.rows, most_rows(sums(builder), fitting.vectors));
    if (!fits()) return std::nullopt;
  } else {
    if (!lies_transposed(g.b, g.depth, g.columns) || !is_plain(g.a) || g.a.column_stride != 1 ||
        g.a.tensor->storage != Storage::kF32)
      return std::nullopt;
    right.kind = RightFactor::kColumns;
    right.stride = g.b.column_stride;
    fitting.rows = std::min(fitting.rows, most_rows(sums(builder), 1));
    for (right.at_once = 4; right.at_once > 1 && right.at_once * fitting.rows > sums(builder);)
      right.at_once /= 2;
  }
  tile = fitting;
  return right;
}

// B in panels of the tile's width, column by column within a row, zeros beyond the last column.
Result<TensorView> pack_columns(Builder& builder, const Gemm& g, const Tile& tile) {
  const std::int64_t width = tile.columns(), panels = ceil_div(g.columns, width);
  const Shape batch = packed_batch(g.batch, g.b);
  TensorView packed = builder.scratch(Storage::kF32, with(batch, {panels, g.depth, width}));
  if (tile.lanes == kLanes && lies_transposed(g.b, g.depth, g.columns)) {
    pack_transposed(builder, g.b, packed, g.columns);
    return packed;
  }
  const std::int64_t whole = g.columns / width;
  for (const bool last : {false, true}) {
    const std::int64_t count = last ? panels - whole : whole;
    if (count == 0) continue;
    Draft d(builder, with(batch, {count, g.depth, width}));
    const std::size_t rank = batch.size();
    const Indices& axes = d.outer();
    const Expr panel = d.e().add(axes[rank], d.index(last ? whole : 0));
    const Expr column = d.e().add(d.e().mul(panel, d.index(width)), axes[rank + 2]);
    const std::span<const Expr> at(axes.data(), rank);
    Expr value = kernelgen::kNoExpr;
    if (last) {
      const Expr inside = d.e().binary(kernelgen::Op::kLt, column, d.index(g.columns));
      value =
          d.e().select(inside, g.b.element(d, at, axes[rank + 1], d.e().clamped(column, g.columns)),
                       d.e().constant(kernelgen::Type::kF32, 0));
    } else {
      value = g.b.element(d, at, axes[rank + 1], column);
    }
    Indices target(axes.begin(), axes.end());
    target[rank] = panel;
    d.store(packed, target, value);
    BP_SDK_RETURN_IF_ERROR(d.finish());
  }
  return packed;
}

Result<RightFactor> right_factor(Builder& builder, const Gemm& g, std::int64_t m, Tile& tile) {
  std::optional<TensorView> packed = g.panels;
  if (packed) {
    tile = cpu_tile(builder, m, packed->dims[2] / kLanes);
  } else {
    if (auto right = read_in_place(builder, g, m, tile)) return *std::move(right);
    if (const Tile joined = choose_tile(builder, m, product(g.batch) * g.columns);
        suits_side_by_side(g, tile, joined)) {
      tile = joined;
      return pack_side_by_side(builder, g, tile.columns());
    }
    auto made = pack_columns(builder, g, tile);
    if (!made.ok()) return made.status();
    packed = std::move(*made);
  }
  Shape strides = packed->strides;
  strides.resize(g.batch.size());
  for (std::size_t i = 0; i < g.batch.size(); ++i)
    if (packed->dims[i] == 1) strides[i] = 0;
  return RightFactor{RightFactor::kPanels, packed->argument, std::move(strides), 0};
}

Result<Factor> pack_rows(Builder& builder, const Gemm& g, std::int64_t m) {
  const Shape batch = packed_batch(g.batch, g.a);
  const TensorView packed = builder.scratch(Storage::kF32, with(batch, {m, g.depth}));
  BP_SDK_RETURN_IF_ERROR(pack_factor(builder, g.a, packed));
  return Factor::matrix(packed);
}

// Products of integers and float64: one reduction a result.
Status add_plain(Builder& builder, const Gemm& g) {
  Shape outer = g.batch;
  outer.insert(outer.end(), g.rows.begin(), g.rows.end());
  outer.push_back(g.columns);
  Draft d(builder, outer, {g.depth});
  const std::span<const Expr> batch(d.outer().data(), g.batch.size());
  Expr row = d.index(0);
  for (std::size_t i = 0; i < g.rows.size(); ++i)
    row = d.e().add(d.e().mul(row, d.index(g.rows[i])), d.outer()[g.batch.size() + i]);
  const Expr x = d.e().mul(g.a.element(d, batch, row, d.loop()[0]),
                           g.b.element(d, batch, d.loop()[0], d.outer().back()));
  BP_SDK_RETURN_IF_ERROR(g.finish(d, d.e().reduce(kernelgen::Reduction::kSum, x), d.outer()));
  return d.finish();
}

}  // namespace

bool is_plain(const Factor& f) {
  return f.tensor && f.tensor->argument.kind != Argument::kOperandValue;
}
Shape packed_batch(const Shape& batch, const Factor& factor) {
  Shape out;
  for (std::size_t i = 0; i < batch.size(); ++i) out.push_back(factor.batched[i] ? batch[i] : 1);
  return out;
}
Status pack_factor(Builder& builder, const Factor& factor, const TensorView& packed) {
  Draft d(builder, packed.dims);
  const Indices& axes = d.outer();
  const std::size_t rank = axes.size() - 2;
  d.store(packed, axes, factor.element(d, {axes.data(), rank}, axes[rank], axes[rank + 1]));
  return d.finish();
}

Factor Factor::matrix(const TensorView& tensor, bool transposed) {
  Factor f;
  f.tensor = tensor;
  const std::size_t rank = tensor.dims.size();
  for (std::size_t i = 0; i + 2 < rank; ++i) {
    f.batched.push_back(tensor.dims[i] != 1 && tensor.strides[i] != 0);
    f.batch_strides.push_back(f.batched.back() ? tensor.strides[i] : 0);
  }
  f.row_stride = tensor.strides[transposed ? rank - 1 : rank - 2];
  f.column_stride = tensor.strides[transposed ? rank - 2 : rank - 1];
  f.element = [f, tensor](Draft& d, std::span<const Expr> batch, Expr row, Expr column) {
    Shape strides = f.batch_strides;
    Indices index(batch.begin(), batch.end());
    index.push_back(row);
    index.push_back(column);
    strides.push_back(f.row_stride);
    strides.push_back(f.column_stride);
    return d.load_at(tensor, d.e().offset(index, strides));
  };
  return f;
}

Status Gemm::finish(Draft& d, Expr sum, const Indices& axes) const {
  if (bias) sum = d.e().add(sum, d.e().cast(d.load(*bias, {axes.back()}), d.e().type(sum)));
  return epilogue(d, sum, axes);
}

Result<std::optional<Panels>> find_panels(Builder& builder, std::size_t operand) {
  const TensorSpec& spec = builder.step().operand(operand);
  if (spec.layout.kind != BP_LAYOUT_OPAQUE) return std::optional<Panels>();
  const auto layout = PanelLayout::parse(spec.layout.layout_id);
  if (!layout) return Status(BP_DATA_CORRUPT, "a weight in an unknown layout");
  auto view = builder.operand(operand);
  if (!view.ok()) return view.status();
  const std::int64_t depth = spec.dims[layout->transposed ? 1 : 0],
                     columns = spec.dims[layout->transposed ? 0 : 1];
  view->dims = {ceil_div(columns, layout->width), depth, layout->width};
  view->strides = sdk::row_major(view->dims);
  return std::optional<Panels>({std::move(*view), layout->transposed});
}
Expr Panels::element(Draft& d, Expr row, Expr column) const {
  const Expr width = d.index(view.dims[2]);
  return d.load(view,
                {d.e().div(column, width), row, d.e().binary(kernelgen::Op::kMod, column, width)});
}

Status add_gemm(Builder& builder, const Gemm& g) {
  const std::int64_t m = product(g.rows);
  if (product(g.batch) * m * g.columns == 0) return {};
  // Of factors without a tensor, elements of the node's own type.
  const auto storage = storage_of(builder.step().node().operand(0).dtype());
  bool floats =
      g.depth > 0 && storage && kernelgen::compute_type(*storage) == kernelgen::Type::kF32;
  for (const Factor* f : {&g.a, &g.b})
    if (f->tensor)
      floats = floats && kernelgen::compute_type(f->tensor->storage) == kernelgen::Type::kF32;
  const bool small = g.depth * m * g.columns < 512;
  if (!floats || small) return add_plain(builder, g);
  if (builder.facts().has_library_products) {
    auto taken = add_library_product(builder, g);
    if (!taken.ok()) return taken.status();
    if (*taken) return {};
  }
  Tile tile = choose_tile(builder, m, g.columns);
  auto right = right_factor(builder, g, m, tile);
  if (!right.ok()) return right.status();
  Factor a = g.a;
  if (!is_plain(a)) {
    auto rows = pack_rows(builder, g, m);
    if (!rows.ok()) return rows.status();
    a = std::move(*rows);
  }
  Shape outer = g.batch;
  outer.insert(outer.end(), g.rows.begin(), g.rows.end());
  outer.push_back(g.columns);
  Draft epilogue(builder, outer);
  BP_SDK_RETURN_IF_ERROR(
      g.finish(epilogue, epilogue.e().external(kernelgen::Type::kF32), epilogue.outer()));
  const kernelgen::Printed product_text =
      print_product(g, tile, a, *right, epilogue, static_cast<std::int64_t>(outer.size()) - 1);
  std::vector<Argument> arguments = epilogue.arguments();
  arguments.push_back(a.tensor->argument);
  arguments.push_back(right->argument);
  const std::int64_t beside = right->side_by_side ? g.batch[0] : 1;
  const Extent items = {static_cast<std::size_t>(ceil_div(m, tile.rows)),
                        static_cast<std::size_t>(ceil_div(beside * g.columns, tile.columns())),
                        static_cast<std::size_t>(product(g.batch) / beside)};
  if (!builder.facts().gpu) {
    builder.launch(product_text, std::move(arguments), items);
    return {};
  }
  const std::size_t wide = std::min<std::size_t>(64, builder.facts().group_limit);
  builder.launch(product_text, std::move(arguments),
                 {(items[0] + wide - 1) / wide * wide, items[1], items[2]}, {wide, 1, 1});
  return {};
}

}  // namespace backplane::kernels
