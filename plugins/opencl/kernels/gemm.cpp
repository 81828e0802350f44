#include "kernels/gemm.h"

#include "kernels/text.h"
#include "kernels/transpose.h"
#include "packing.h"

namespace backplane::opencl {
namespace {

struct Tile {
  std::int64_t rows, vectors, lanes;
  std::int64_t columns() const { return vectors * lanes; }
};
// Few heights, so that sizes which change have few kernels. Rows beyond the last repeat it.
std::int64_t height(std::int64_t m, std::int64_t most) {
  for (const std::int64_t rows : {1, 2, 4, 6})
    if (m <= rows) return rows;
  return most;
}
// As many as there are registers for.
std::int64_t most_rows(std::int64_t vectors) {
  return vectors == 1 ? 14 : vectors == 2 ? 12 : vectors == 3 ? 8 : 6;
}
Tile choose_tile(const Builder& builder, std::int64_t m, std::int64_t n) {
  if (builder.schedule().gpu)
    return {std::min<std::int64_t>(m, 4), std::min<std::int64_t>(n, 4), 1};
  if (n <= 16) return {height(m, 14), 1, 16};
  const std::int64_t vectors = n <= 32 ? 2
                               : m > 8 ? builder.context().product_tile(false).vectors
                                       : 4;
  return {height(m, most_rows(vectors)), vectors, 16};
}

Shape with(Shape dims, std::initializer_list<std::int64_t> more) {
  dims.insert(dims.end(), more.begin(), more.end());
  return dims;
}
// Batch dims that a packed factor has.
Shape packed_batch(const Shape& batch, const Factor& factor) {
  Shape out;
  for (std::size_t i = 0; i < batch.size(); ++i) out.push_back(factor.batched[i] ? batch[i] : 1);
  return out;
}
bool is_plain(const Factor& f) {
  return f.tensor && f.tensor->argument.kind != Argument::kOperandValue;
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

Result<Factor> pack_rows(Builder& builder, const Gemm& g, std::int64_t m) {
  const Shape batch = packed_batch(g.batch, g.a);
  const TensorView packed = builder.scratch(Storage::kF32, with(batch, {m, g.depth}));
  Draft d(builder, packed.dims);
  const Indices& axes = d.outer();
  const std::size_t rank = batch.size();
  d.store(packed, axes, g.a.element(d, {axes.data(), rank}, axes[rank], axes[rank + 1]));
  BP_SDK_RETURN_IF_ERROR(d.finish());
  return Factor::matrix(packed);
}

// Splits `flat` into variables of the axes [first, first + dims.size()).
std::string split(const Shape& dims, std::size_t first, const std::string& flat,
                  const std::string& name) {
  std::string out = "  int " + name + " = " + flat + ";\n";
  for (std::size_t i = dims.size(); i-- > 0;) {
    const std::string axis = "a" + number(static_cast<std::int64_t>(first + i));
    if (i == 0) {
      out.append("  const int ").append(axis).append(" = ").append(name).append(";\n");
    } else {
      const std::string size = number(dims[i]);
      out.append("  const int ").append(axis).append(" = ").append(name).append(" % ");
      out.append(size).append("; ").append(name).append(" /= ").append(size).append(";\n");
    }
  }
  return out;
}

std::string batch_offset(const Shape& strides) {
  std::string out = "0";
  for (std::size_t i = 0; i < strides.size(); ++i)
    if (strides[i] != 0)
      out +=
          " + (ulong)a" + number(static_cast<std::int64_t>(i)) + " * " + number(strides[i]) + "UL";
  return out;
}

std::string load_element(Storage storage, const std::string& at) {
  switch (storage) {
    case Storage::kBF16:
      return "bp_from_bf16_1(" + at + ")";
    case Storage::kF16:
      return "vload_half(0, &" + at + ")";
    default:
      return "(float)" + at;
  }
}
std::string_view element_name(Storage storage) {
  switch (storage) {
    case Storage::kF32:
      return "float";
    case Storage::kBF16:
      return "ushort";
    case Storage::kF16:
      return "half";
    default:
      return "int";
  }
}

std::string print_product(const Gemm& g, const Tile& t, std::int64_t m, const Factor& a,
                          const TensorView& b, const Draft& epilogue, std::int64_t lane_axis) {
  const std::string lanes = number(t.lanes), vector = t.lanes > 1 ? "float" + lanes : "float";
  const auto store =
      kernelgen::print_fragment(epilogue.kernel(), static_cast<std::size_t>(lane_axis), t.lanes);
  const std::string element(element_name(a.tensor->storage));
  const std::string column = "a" + number(lane_axis);
  const auto load = [&](const std::string& p, const std::string& index) -> std::string {
    return t.lanes > 1 ? "vload" + lanes + "(" + index + ", " + p + ")" : p + "[" + index + "]";
  };
  std::string s = "__kernel void BP_ENTRY(" + kernelgen::print_parameters(epilogue.kernel());
  s += ", __global uchar* base_a, ulong offset_a, __global uchar* base_b, ulong offset_b) {\n";
  s += kernelgen::print_declarations(epilogue.kernel());
  s += "  const int i0 = (int)get_global_id(0) * " + number(t.rows) +
       ", j = (int)get_global_id(1);\n";
  s += "  if (i0 >= " + number(m) + ") return;\n";
  s += split(g.batch, 0, "(int)get_global_id(2)", "rest_batch");
  s += "  __global const " + element + "* restrict pa = (__global const " + element +
       "*)(base_a + offset_a) + (" + batch_offset(a.batch_strides) + ");\n";
  Shape panel_strides = b.strides;
  panel_strides.resize(g.batch.size());
  for (std::size_t i = 0; i < g.batch.size(); ++i)
    if (b.dims[i] == 1) panel_strides[i] = 0;
  s += "  __global const float* restrict pb = (__global const float*)(base_b + offset_b) + (" +
       batch_offset(panel_strides) + ") + (ulong)j * " + number(g.depth * t.columns()) + "UL;\n";
  for (std::int64_t r = 0; r < t.rows; ++r) {
    s += "  __global const " + element + "* restrict p" + number(r) + " = pa + (ulong)min(i0 + " +
         number(r) + ", " + number(m - 1) + ") * " + number(a.row_stride) + "UL;\n";
    for (std::int64_t v = 0; v < t.vectors; ++v)
      s += "  " + vector + " c" + number(r) + "_" + number(v) + " = 0.0f;\n";
  }
  s += "  for (int k = 0; k < " + number(g.depth) + "; ++k) {\n";
  for (std::int64_t v = 0; v < t.vectors; ++v)
    s += "    const " + vector + " b" + number(v) + " = " + load("pb", number(v)) + ";\n";
  const std::string at =
      a.column_stride == 1 ? "k" : "(ulong)k * " + number(a.column_stride) + "UL";
  for (std::int64_t r = 0; r < t.rows; ++r) {
    s += "    { const float a = " +
         load_element(a.tensor->storage, "p" + number(r) + "[" + at + "]") + ";";
    for (std::int64_t v = 0; v < t.vectors; ++v) {
      const std::string c = "c" + number(r) + "_" + number(v);
      s.append(" ").append(c).append(" = fma((").append(vector).append(")(a), b");
      s.append(number(v)).append(", ").append(c).append(");");
    }
    s += " }\n";
  }
  s += "    pb += " + number(t.columns()) + ";\n  }\n";
  s += "  " + vector + " tile[" + number(t.rows * t.vectors) + "];\n";
  for (std::int64_t r = 0; r < t.rows; ++r)
    for (std::int64_t v = 0; v < t.vectors; ++v)
      s += "  tile[" + number(r * t.vectors + v) + "] = c" + number(r) + "_" + number(v) + ";\n";
  s += "  for (int r = 0; r < " + number(t.rows) + " && i0 + r < " + number(m) + "; ++r) {\n";
  s += split(g.rows, g.batch.size(), "i0 + r", "rest_row");
  s += "  for (int v = 0; v < " + number(t.vectors) + "; ++v) {\n";
  s += "  int " + column + " = j * " + number(t.columns()) + " + v * " + lanes + ";\n";
  const std::string x = "  const " + vector + " x = tile[r * " + number(t.vectors) + " + v];\n";
  if (t.lanes > 1) {
    s += x + "  if (" + column + " + " + lanes + " <= " + number(g.columns) + ") {\n  const " +
         vector + " x0 = x;\n" + store.wide + "  } else {\n  float lane[" + lanes + "];\n  vstore" +
         lanes + "(x, 0, lane);\n  for (int l = 0; " + column + " < " + number(g.columns) +
         "; ++l, ++" + column + ") {\n  const float x0 = lane[l];\n" + store.narrow + "  }\n  }\n";
  } else {
    s += x + "  if (" + column + " < " + number(g.columns) + ") {\n  const float x0 = x;\n" +
         store.narrow + "  }\n";
  }
  return s + "  }\n  }\n}\n";
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
  BP_SDK_RETURN_IF_ERROR(g.epilogue(d, d.e().reduce(kernelgen::Reduction::kSum, x), d.outer()));
  return d.finish();
}

}  // namespace

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
  bool floats = g.depth > 0;
  for (const Factor* f : {&g.a, &g.b})
    if (f->tensor)
      floats = floats && kernelgen::compute_type(f->tensor->storage) == kernelgen::Type::kF32;
  const bool small = g.depth * m * g.columns < 512;
  if (!floats || small) return add_plain(builder, g);
  Tile tile = choose_tile(builder, m, g.columns);
  std::optional<TensorView> packed = g.panels;
  if (packed) {
    tile.lanes = 16;
    tile.vectors = packed->dims[2] / tile.lanes;
    tile.rows = height(m, most_rows(tile.vectors));
  } else {
    auto made = pack_columns(builder, g, tile);
    if (!made.ok()) return made.status();
    packed = std::move(*made);
  }
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
      g.epilogue(epilogue, epilogue.e().external(kernelgen::Type::kF32), epilogue.outer()));
  const kernelgen::Printed product_text = kernelgen::name_entry(
      print_product(g, tile, m, a, *packed, epilogue, static_cast<std::int64_t>(outer.size()) - 1));
  std::vector<Argument> arguments = epilogue.arguments();
  arguments.push_back(a.tensor->argument);
  arguments.push_back(packed->argument);
  const std::array<std::size_t, 3> items = {
      static_cast<std::size_t>(ceil_div(m, tile.rows)),
      static_cast<std::size_t>(ceil_div(g.columns, tile.columns())),
      static_cast<std::size_t>(product(g.batch))};
  if (!builder.schedule().gpu) {
    builder.launch(product_text, std::move(arguments), items);
    return {};
  }
  const std::size_t wide = std::min<std::size_t>(64, builder.context().facts().group_limit);
  builder.launch(product_text, std::move(arguments),
                 {(items[0] + wide - 1) / wide * wide, items[1], items[2]}, {wide, 1, 1});
  return {};
}

}  // namespace backplane::opencl
