#include "gemm_text.hpp"

#include "text.hpp"

namespace backplane::kernels {
namespace {

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

std::string load_element(Storage storage, const std::string& tensor, const std::string& at) {
  const std::string element = kernelgen::element_load(storage, tensor, at);
  return kernelgen::compute_type(storage) == kernelgen::Type::kF32 ? element : "(float)" + element;
}

std::string right_pointer(const Gemm& g, const Tile& t, const RightFactor& right) {
  const std::int64_t apart = right.kind == RightFactor::kPanels ? g.depth * t.columns()
                             : right.kind == RightFactor::kRows ? t.columns()
                                                                : t.columns() * right.stride;
  return "  BP_GLOBAL const float* BP_RESTRICT pb = (BP_GLOBAL const float*)(base_b + offset_b) + "
         "(" +
         batch_offset(right.batch_strides) + ") + (ulong)j * " + number(apart) + "UL;\n";
}

// Of one sum after the other in float32 the last digits are lost when it is long.
constexpr std::int64_t kLongestSum = 2048;

// One row of the right factor after the other, each times an element of every row of the left;
// longer ones as a sum of sums.
std::string sum_by_rows(const Gemm& g, const Tile& t, const Factor& a, const RightFactor& right) {
  const std::string lanes = number(t.lanes), vector = t.lanes > 1 ? "float" + lanes : "float";
  const bool in_parts = g.depth > kLongestSum;
  const std::string depth = number(g.depth);
  std::string s = "  " + vector + " tile[" + number(t.rows * t.vectors) + "];\n";
  const auto each = [&](auto&& line) {
    for (std::int64_t r = 0; r < t.rows; ++r)
      for (std::int64_t v = 0; v < t.vectors; ++v)
        s += line("tile[" + number(r * t.vectors + v) + "]", "c" + number(r) + "_" + number(v));
  };
  if (in_parts) {
    each([](const auto& sum, const auto&) { return "  " + sum + " = 0.0f;\n"; });
    s += "  for (int part = 0; part < " + depth + "; part += " + number(kLongestSum / 2) +
         ") {\n  const int end = BP_MIN(part + " + number(kLongestSum / 2) + ", " + depth + ");\n";
  }
  each([&](const auto&, const auto& c) { return "  " + vector + " " + c + " = 0.0f;\n"; });
  s += in_parts ? "  for (int k = part; k < end; ++k) {\n"
                : "  for (int k = 0; k < " + depth + "; ++k) {\n";
  for (std::int64_t v = 0; v < t.vectors; ++v)
    s += "    const " + vector + " b" + number(v) + " = " +
         (t.lanes > 1 ? load_vector(t.lanes, number(v), "pb") : "pb[" + number(v) + "]") + ";\n";
  const std::string at =
      a.column_stride == 1 ? "k" : "(ulong)k * " + number(a.column_stride) + "UL";
  for (std::int64_t r = 0; r < t.rows; ++r) {
    s += "    { const float a = " + load_element(a.tensor->storage, "p" + number(r), at) + ";";
    for (std::int64_t v = 0; v < t.vectors; ++v) {
      const std::string c = "c" + number(r) + "_" + number(v);
      s.append(" ").append(c).append(" = BP_FMA((").append(vector).append(")(a), b");
      s.append(number(v)).append(", ").append(c).append(");");
    }
    s += " }\n";
  }
  s += "    pb += " + number(right.kind == RightFactor::kRows ? right.stride : t.columns()) +
       ";\n  }\n";
  each([&](const auto& sum, const auto& c) {
    return "  " + sum + (in_parts ? " += " : " = ") + c + ";\n";
  });
  return in_parts ? s + "  }\n" : s;
}

// Dot products of the left factor's rows and a few columns at once, as registers allow.
std::string sum_by_columns(const Gemm& g, const Tile& t, const RightFactor& right) {
  const std::int64_t at_once = right.at_once, whole = g.depth / kLanes * kLanes;
  const std::string lanes = number(kLanes);
  std::string s = "  float sums[" + number(t.rows * t.columns()) + "];\n  for (int c = 0; c < " +
                  number(t.columns()) + "; c += " + number(at_once) + ") {\n";
  const auto sum_name = [](std::int64_t r, std::int64_t i) {
    return "s" + number(r) + "_" + number(i);
  };
  const std::string vector = "float" + lanes, tile = "j * " + number(t.columns());
  const std::string last = number(g.columns - 1), stride = number(right.stride) + "UL";
  for (std::int64_t i = 0; i < at_once; ++i) {
    const std::string n = number(i);
    s.append("    BP_GLOBAL const float* BP_RESTRICT q")
        .append(n)
        .append(" = pb + (ulong)(BP_MIN(");
    s.append(tile).append(" + c + ").append(n).append(", ").append(last).append(") - ");
    s.append(tile).append(") * ").append(stride).append(";\n");
    for (std::int64_t r = 0; r < t.rows; ++r)
      s.append("    ").append(vector).append(" ").append(sum_name(r, i)).append(" = 0.0f;\n");
  }
  const std::string end = number(whole);
  s.append("    for (int k = 0; k < ").append(end).append("; k += ").append(lanes).append(") {\n");
  for (std::int64_t i = 0; i < at_once; ++i) {
    const std::string n = number(i);
    s.append("      const ").append(vector).append(" b").append(n).append(" = ");
    s.append(load_vector(kLanes, "0", "q" + n + " + k")).append(";\n");
  }
  for (std::int64_t r = 0; r < t.rows; ++r) {
    const std::string row = number(r);
    s.append("      { const ").append(vector).append(" a = ");
    s.append(load_vector(kLanes, "0", "p" + row + " + k")).append(";");
    for (std::int64_t i = 0; i < at_once; ++i) {
      const std::string n = number(i), sum = sum_name(r, i);
      s.append(" ").append(sum).append(" = BP_FMA(a, b").append(n).append(", ").append(sum);
      s.append(");");
    }
    s.append(" }\n");
  }
  s += "    }\n";
  for (std::int64_t r = 0; r < t.rows; ++r)
    for (std::int64_t i = 0; i < at_once; ++i) {
      const std::string row = number(r), n = number(i), sum = sum_name(r, i),
                        to = "sums[" + number(r * t.columns() + i) + " + c]";
      s.append("    { const float8 h = ").append(sum).append(".lo + ").append(sum);
      s.append(".hi; const float4 f = h.lo + h.hi; const float2 d = f.lo + f.hi; ").append(to);
      s.append(" = d.x + d.y; }\n");
      if (whole == g.depth) continue;
      s.append("    for (int k = ").append(end).append("; k < ").append(number(g.depth));
      s.append("; ++k) ").append(to).append(" += p").append(row).append("[k] * q").append(n);
      s.append("[k];\n");
    }
  s += "  }\n  float" + lanes + " tile[" + number(t.rows * t.vectors) + "];\n";
  return s + "  for (int v = 0; v < " + number(t.rows * t.vectors) + "; ++v) tile[v] = vload" +
         lanes + "(v, sums);\n";
}

// Declares the column of a vector's first result, and side by side also the axes before the rows.
std::string place_of_results(const Gemm& g, const Tile& t, const RightFactor& right,
                             const std::string& column) {
  const std::string at = "j * " + number(t.columns()) + " + v * " + number(t.lanes);
  if (!right.side_by_side) return "  int " + column + " = " + at + ";\n";
  std::string s = "  int a0 = (" + at + ") / " + number(g.columns) + ", " + column + " = (" + at +
                  ") % " + number(g.columns) + ";\n  if (a0 >= " + number(g.batch[0]) +
                  ") break;\n";
  for (std::size_t i = 1; i < g.batch.size(); ++i)
    s += "  const int a" + number(static_cast<std::int64_t>(i)) + " = 0;\n";
  return s;
}

// As store_vector, but lanes beyond a row's end belong to the next matrix.
std::string store_vector_on(const kernelgen::Fragment& store, const Gemm& g,
                            const std::string& column) {
  const std::string lanes = number(kLanes), end = number(g.columns);
  return "  if (" + column + " + " + lanes + " <= " + end + ") {\n  const float16 x0 = x;\n" +
         store.wide + "  } else {\n  float lane[" + lanes +
         "];\n  vstore16(x, 0, lane);\n  for (int l = 0; l < " + lanes + " && a0 < " +
         number(g.batch[0]) + "; ++l) {\n  {\n  const float x0 = lane[l];\n" + store.narrow +
         "  }\n  if (++" + column + " == " + end + ") { " + column + " = 0; ++a0; }\n  }\n  }\n";
}

}  // namespace

kernelgen::Printed print_product(const Gemm& g, const Tile& t, const Factor& a,
                                 const RightFactor& right, const Draft& epilogue,
                                 std::int64_t lane_axis) {
  const std::int64_t m = product(g.rows);
  const std::string lanes = number(t.lanes), vector = t.lanes > 1 ? "float" + lanes : "float";
  const auto store = kernelgen::print_fragment(epilogue.kernel(), epilogue.dialect(),
                                               static_cast<std::size_t>(lane_axis), t.lanes);
  const std::string element(kernelgen::element_type(a.tensor->storage));
  const std::string column = "a" + number(lane_axis);
  std::string s = open_kernel(epilogue.kernel());
  s += "  const int i0 = (int)BP_ID(0) * " + number(t.rows) + ", j = (int)BP_ID(1);\n";
  s += "  if (i0 >= " + number(m) + ") return;\n";
  if (!right.side_by_side) s += split(g.batch, 0, "(int)BP_ID(2)", "rest_batch");
  s += "  BP_GLOBAL const " + element + "* BP_RESTRICT pa = (BP_GLOBAL const " + element +
       "*)(base_a + offset_a) + (" + batch_offset(a.batch_strides) + ");\n";
  s += right_pointer(g, t, right);
  for (std::int64_t r = 0; r < t.rows; ++r)
    s += "  BP_GLOBAL const " + element + "* BP_RESTRICT p" + number(r) +
         " = pa + (ulong)BP_MIN(i0 + " + number(r) + ", " + number(m - 1) + ") * " +
         number(a.row_stride) + "UL;\n";
  s += right.kind == RightFactor::kColumns ? sum_by_columns(g, t, right)
                                           : sum_by_rows(g, t, a, right);
  s += "  for (int r = 0; r < " + number(t.rows) + " && i0 + r < " + number(m) + "; ++r) {\n";
  s += split(g.rows, g.batch.size(), "i0 + r", "rest_row");
  s += "  for (int v = 0; v < " + number(t.vectors) + "; ++v) {\n";
  s += place_of_results(g, t, right, column);
  s += "  const " + vector + " x = tile[r * " + number(t.vectors) + " + v];\n";
  if (right.side_by_side) {
    s += store_vector_on(store, g, column);
  } else if (t.lanes > 1) {
    s += store_vector(store, column, g.columns, t.lanes);
  } else {
    s += "  if (" + column + " < " + number(g.columns) + ") {\n  const float x0 = x;\n" +
         store.narrow + "  }\n";
  }
  return kernelgen::name_entry(s + "  }\n  }\n}\n");
}

}  // namespace backplane::kernels
