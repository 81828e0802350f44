#include "packing.h"

#include <backplane/kernelgen/kernel.hpp>

#include "launch.h"

namespace backplane::opencl {
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
std::shared_ptr<const Program> conversion(Context& context, bool packs) {
  const kernelgen::Printed kernel = kernelgen::name_entry(
      std::string(
          "BP_KERNEL BP_ENTRY(BP_GLOBAL uchar* b0, ulong o0, BP_GLOBAL uchar* b1, ulong o1,"
          " ulong columns, ulong row_stride, ulong column_stride, ulong width) {\n  BP_BEGIN\n"
          "  BP_GLOBAL float* plain = (BP_GLOBAL float*)(b0 + o0);\n"
          "  BP_GLOBAL float* panels = (BP_GLOBAL float*)(b1 + o1);\n"
          "  const ulong row = get_global_id(0), panel = get_global_id(1);\n"
          "  plain += row * row_stride;\n"
          "  panels += (panel * get_global_size(0) + row) * width;\n"
          "  for (ulong i = 0; i < width; ++i) {\n"
          "    const ulong at = panel * width + i;\n") +
      (packs ? "    panels[i] = at < columns ? plain[at * column_stride] : 0.0f;\n"
             : "    if (at < columns) plain[at * column_stride] = panels[i];\n") +
      "  }\n}\n");
  return context.program(kernel.text, kernel.entry, "the packing of a weight");
}

}  // namespace

void want_packing(Context& context) { conversion(context, true); }

Result<cl_event> convert_panels(Context& context, cl_command_queue queue, const PanelLayout& layout,
                                std::span<const std::int64_t> dims,
                                std::span<const std::int64_t> strides, Place plain, Place panels,
                                bool packs, std::vector<cl_event> waits) {
  const std::size_t row = layout.transposed ? 1 : 0, column = 1 - row;
  static const auto work = std::make_shared<const Work>(Work{"the packing of a weight", {}});
  LaunchList list(work);
  const auto bits = [](std::int64_t v) { return Argument::bits(static_cast<std::uint64_t>(v)); };
  const std::int64_t panel_count = (dims[column] + layout.width - 1) / layout.width;
  Recorder recorder(context, queue, std::move(waits));
  if (dims[row] != 0 && panel_count != 0)
    list.add({conversion(context, packs),
              {Argument::at(plain), Argument::at(panels), bits(dims[column]), bits(strides[row]),
               bits(strides[column]), bits(layout.width)},
              {static_cast<std::size_t>(dims[row]), static_cast<std::size_t>(panel_count), 1},
              {1, 1, 1},
              0});
  BP_SDK_RETURN_IF_ERROR(context.build_pending());
  Recorder::current() = &recorder;
  Status status = list.run({nullptr, nullptr, nullptr});
  Recorder::current() = nullptr;
  auto event = recorder.finish();
  if (status.ok()) return event;
  if (event.ok()) {
    clWaitForEvents(1, &*event);
    clReleaseEvent(*event);
  }
  return status;
}

}  // namespace backplane::opencl
