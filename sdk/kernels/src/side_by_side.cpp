#include "side_by_side.hpp"

#include "text.hpp"

namespace backplane::kernels {
namespace {

constexpr std::int64_t kDepth = 64;  // rows of the factor that a work-item packs
constexpr double kLeastGain = 1.04;

}  // namespace

bool suits_side_by_side(const Gemm& g, const Tile& apart, const Tile& joined) {
  const Factor& b = g.b;
  if (apart.lanes != kLanes || g.panels || g.batch.empty() || g.batch[0] == 1 ||
      product(g.batch) != g.batch[0] || g.a.batched[0] || !b.batched[0] || !b.tensor ||
      b.tensor->storage != Storage::kF32 || b.tensor->argument.kind == Argument::kOperandValue ||
      b.column_stride != 1)
    return false;
  const std::int64_t columns = g.batch[0] * g.columns;
  if (columns > INT32_MAX / 2) return false;
  const auto computed = [](std::int64_t n, const Tile& tile) {
    return static_cast<double>(ceil_div(n, tile.columns()) * tile.columns());
  };
  return computed(columns, joined) * kLeastGain <
         static_cast<double>(g.batch[0]) * computed(g.columns, apart);
}

RightFactor pack_side_by_side(Builder& builder, const Gemm& g, std::int64_t width) {
  const std::int64_t columns = g.batch[0] * g.columns, panels = ceil_div(columns, width);
  const TensorView packed = builder.scratch(Storage::kF32, {panels, g.depth, width});
  const std::string lanes = number(kLanes), matrix = number(g.b.batch_strides[0]),
                    row = number(g.b.row_stride), each = number(g.columns), depth = number(g.depth);
  const std::string text =
      "BP_KERNEL BP_ENTRY(BP_ITEM BP_GLOBAL uchar* base_a, ulong offset_a, BP_GLOBAL uchar* "
      "base_b, "
      "ulong offset_b) {\n  BP_BEGIN\n"
      "  const int first = (int)BP_ID(0) * " +
      lanes + ", k0 = (int)BP_ID(1) * " + number(kDepth) + ", n = first / " + each +
      ", column = first % " + each + ", end = min(k0 + " + number(kDepth) + ", " + depth +
      ");\n"
      "  BP_GLOBAL const float* from = (BP_GLOBAL const float*)(base_a + offset_a);\n"
      "  BP_GLOBAL float* to = (BP_GLOBAL float*)(base_b + offset_b) + (ulong)(first / " +
      number(width) + ") * " + number(g.depth * width) + "UL + first % " + number(width) +
      ";\n"
      // Behind the last column there is no matrix.
      "  if (first < " +
      number(columns) + " && column + " + lanes + " <= " + each +
      ") {\n"
      "    from += (ulong)n * " +
      matrix +
      "UL + column;\n"
      "    for (int k = k0; k < end; ++k)\n"
      "      BP_STORE_F32_16(BP_LOAD_F32_16(0, from + (ulong)k * " +
      row + "UL), 0, to + (ulong)k * " + number(width) +
      "UL);\n"
      "    return;\n"
      "  }\n"
      "  for (int l = 0; l < " +
      lanes +
      "; ++l) {\n"
      "    const int at = first + l;\n"
      "    const bool inside = at < " +
      number(columns) +
      ";\n"
      "    BP_GLOBAL const float* own = from + (inside ? (ulong)(at / " +
      each + ") * " + matrix + "UL + at % " + each +
      " : 0);\n"
      "    for (int k = k0; k < end; ++k)\n"
      "      to[(ulong)k * " +
      number(width) + "UL + l] = inside ? own[(ulong)k * " + row +
      "UL] : 0.0f;\n"
      "  }\n}\n";
  builder.launch(kernelgen::name_entry(text), {g.b.tensor->argument, packed.argument},
                 {static_cast<std::size_t>(panels * width / kLanes),
                  static_cast<std::size_t>(ceil_div(g.depth, kDepth)), 1});
  RightFactor right{RightFactor::kPanels, packed.argument, Shape(g.batch.size(), 0), 0};
  right.side_by_side = true;
  return right;
}

}  // namespace backplane::kernels
