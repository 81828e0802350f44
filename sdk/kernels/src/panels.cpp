#include <backplane/kernels/panels.hpp>

#include "launch.hpp"

namespace backplane::kernels {
namespace {

constexpr std::int64_t kNarrow = 16, kWidest = 64;

}  // namespace

std::optional<PanelLayout> PanelLayout::parse(std::uint64_t id) {
  const PanelLayout layout{(id & 1) != 0, static_cast<std::int64_t>(id / 2)};
  if (layout.width == 0 || layout.width % kNarrow != 0 || layout.width > kWidest)
    return std::nullopt;
  return layout;
}
PanelLayout PanelLayout::choose(std::int64_t columns, bool transposed, std::int64_t wide) {
  return {transposed, columns <= kNarrow ? kNarrow : wide};
}
std::uint64_t PanelLayout::bytes(std::span<const std::int64_t> dims) const {
  const std::int64_t rows = dims[transposed ? 1 : 0], columns = dims[transposed ? 0 : 1];
  return static_cast<std::uint64_t>((columns + width - 1) / width * width * rows) * sizeof(float);
}

namespace {

// One work-item a row of a panel; sizes are arguments, because every weight is packed once.
std::shared_ptr<const Program> conversion(Target& target, bool packs) {
  const kernelgen::Printed kernel = kernelgen::name_entry(
      std::string(
          "BP_KERNEL BP_ENTRY(BP_ITEM BP_GLOBAL uchar* b0, ulong o0, BP_GLOBAL uchar* b1, ulong o1,"
          " ulong columns, ulong row_stride, ulong column_stride, ulong width, ulong rows) {\n"
          "  BP_BEGIN\n"
          "  BP_GLOBAL float* plain = (BP_GLOBAL float*)(b0 + o0);\n"
          "  BP_GLOBAL float* panels = (BP_GLOBAL float*)(b1 + o1);\n"
          "  const ulong row = BP_ID(0), panel = BP_ID(1);\n"
          "  plain += row * row_stride;\n"
          "  panels += (panel * rows + row) * width;\n"
          "  for (ulong i = 0; i < width; ++i) {\n"
          "    const ulong at = panel * width + i;\n") +
      (packs ? "    panels[i] = at < columns ? plain[at * column_stride] : 0.0f;\n"
             : "    if (at < columns) plain[at * column_stride] = panels[i];\n") +
      "  }\n}\n");
  return target.program(kernel.text, kernel.entry, "the packing of a weight");
}

}  // namespace

Result<PanelLayout> panel_layout(const sdk::TensorDesc& desc) {
  const auto layout = PanelLayout::parse(desc.layout.layout_id);
  if (!layout || desc.dims.size() != 2 || !(desc.dtype == sdk::kFloat32))
    return Status(BP_DATA_CORRUPT, "an unknown layout");
  return *layout;
}

void want_packing(Target& target) { conversion(target, true); }

Status convert_panels(Target& target, Launcher& launcher, const PanelLayout& layout,
                      const sdk::TensorDesc& plain_desc, std::byte* plain, std::byte* panels,
                      bool packs) {
  static const auto work = std::make_shared<const Work>(Work{"the packing of a weight", {}});
  const std::size_t row = layout.transposed ? 1 : 0, column = 1 - row;
  const std::int64_t rows = plain_desc.dims[row], columns = plain_desc.dims[column];
  const std::int64_t panel_count = (columns + layout.width - 1) / layout.width;
  if (rows == 0 || panel_count == 0) return {};
  const auto program = conversion(target, packs);
  BP_SDK_RETURN_IF_ERROR(target.build_pending());
  const auto bits = [](std::int64_t v) {
    return Bound{nullptr, static_cast<std::uint64_t>(v), false};
  };
  const std::array<Bound, 7> arguments = {Bound{plain, 0, true},
                                          Bound{panels, 0, true},
                                          bits(columns),
                                          bits(plain_desc.strides[row]),
                                          bits(plain_desc.strides[column]),
                                          bits(layout.width),
                                          bits(rows)};
  return launcher.launch(*program, arguments,
                         {static_cast<std::size_t>(rows), static_cast<std::size_t>(panel_count), 1},
                         {1, 1, 1}, work);
}

}  // namespace backplane::kernels
