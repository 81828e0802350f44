#include "transpose.hpp"

#include "text.hpp"

namespace backplane::kernels {
namespace {

// Four times rows i and i + 8 are merged element by element: that turns sixteen rows into columns.
std::string merge_text() {
  std::string low, high;
  for (const char digit : std::string("01234567")) {
    const std::string d(1, digit);
    low.append(low.empty() ? "(a).s" : ", (a).s").append(d).append(", (b).s").append(d);
  }
  for (const char digit : std::string("89abcdef")) {
    const std::string d(1, digit);
    high.append(high.empty() ? "(a).s" : ", (a).s").append(d).append(", (b).s").append(d);
  }
  return "#define BP_LOW(a, b) (float16)(" + low + ")\n#define BP_HIGH(a, b) (float16)(" + high +
         ")\n";
}

std::string square_text(std::int64_t column_stride, std::int64_t width) {
  std::string s;
  for (std::int64_t j = 0; j < kLanes; ++j)
    s += "    const float16 m0_" + number(j) + " = BP_LOAD_F32_16(0, from + (ulong)" + number(j) +
         " * " + number(column_stride) + "UL);\n";
  for (std::int64_t step = 0; step < 4; ++step)
    for (std::int64_t i = 0; i < kLanes / 2; ++i)
      for (const bool high : {false, true}) {
        const std::string rows = "m" + number(step) + "_";
        s.append("    const float16 m").append(number(step + 1)).append("_");
        s.append(number(2 * i + (high ? 1 : 0))).append(high ? " = BP_HIGH(" : " = BP_LOW(");
        s.append(rows).append(number(i)).append(", ").append(rows).append(number(i + kLanes / 2));
        s.append(");\n");
      }
  for (std::int64_t j = 0; j < kLanes; ++j)
    s += "    BP_STORE_F32_16(m4_" + number(j) + ", 0, to + " + number(j * width) + ");\n";
  return s;
}

}  // namespace

bool lies_transposed(const Factor& factor, std::int64_t depth, std::int64_t columns) {
  return factor.tensor && factor.tensor->storage == Storage::kF32 &&
         factor.tensor->argument.kind != Argument::kOperandValue && factor.row_stride == 1 &&
         factor.column_stride > 1 && depth >= kLanes && columns >= kLanes;
}

void pack_transposed(Builder& builder, const Factor& factor, const TensorView& packed,
                     std::int64_t columns) {
  const std::size_t rank = packed.dims.size() - 3;
  const std::int64_t panels = packed.dims[rank], depth = packed.dims[rank + 1],
                     width = packed.dims[rank + 2];
  const std::string lanes = number(kLanes);
  std::string s =
      merge_text() +
      "BP_KERNEL BP_ENTRY(BP_ITEM BP_GLOBAL uchar* base_a, ulong offset_a, BP_GLOBAL uchar* "
      "base_b, ulong offset_b) {\n  BP_BEGIN\n  const int k0 = (int)BP_ID(0) * " +
      lanes + ", n0 = (int)BP_ID(1) * " + lanes +
      ";\n  int batch = (int)BP_ID(2);\n"
      "  BP_GLOBAL float* to = (BP_GLOBAL float*)(base_b + offset_b) + ((ulong)batch * " +
      number(panels) + "UL + n0 / " + number(width) + ") * " + number(depth * width) +
      "UL + (ulong)k0 * " + number(width) + "UL + n0 % " + number(width) + ";\n" +
      "  BP_GLOBAL const float* from = (BP_GLOBAL const float*)(base_a + offset_a) + "
      "(ulong)n0 * " +
      number(factor.column_stride) + "UL + k0;\n";
  for (std::size_t i = rank; i-- > 0;) {
    s += "  from += (ulong)(batch % " + number(packed.dims[i]) + ") * " +
         number(factor.batch_strides[i]) + "UL; batch /= " + number(packed.dims[i]) + ";\n";
  }
  s += "  if (k0 + " + lanes + " <= " + number(depth) + " && n0 + " + lanes +
       " <= " + number(columns) + ") {\n" + square_text(factor.column_stride, width) +
       "    return;\n  }\n  for (int i = 0; i < " + lanes + " && k0 + i < " + number(depth) +
       "; ++i)\n    for (int j = 0; j < " + lanes + "; ++j)\n      to[i * " + number(width) +
       " + j] = n0 + j < " + number(columns) + " ? from[(ulong)j * " +
       number(factor.column_stride) + "UL + i] : 0.0f;\n}\n";
  const std::int64_t batches = product(packed.dims) / (panels * depth * width);
  builder.launch(
      kernelgen::name_entry(s), {factor.tensor->argument, packed.argument},
      {static_cast<std::size_t>(ceil_div(depth, kLanes)),
       static_cast<std::size_t>(panels * width / kLanes), static_cast<std::size_t>(batches)});
}

}  // namespace backplane::kernels
