// Weights in the order that products read them: panels of columns, row after row, float32, zeros
// beyond the last column. Packed once per device instead of at every call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "context.h"

namespace backplane::opencl {

struct PanelLayout {
  bool transposed = false;  // the product's right factor is the weight's transpose
  std::int64_t width = 32;  // columns of a panel

  std::uint64_t id() const { return static_cast<std::uint64_t>(width) * 2 + (transposed ? 1 : 0); }
  static std::optional<PanelLayout> parse(std::uint64_t id);
  // For a product with `columns` of results; `wide`: columns of tiles where there are many.
  static PanelLayout choose(std::int64_t columns, bool transposed, std::int64_t wide);
  std::uint64_t bytes(std::span<const std::int64_t> weight_dims) const;
};

// The kernel that packs is built with the next programs.
void want_packing(Context& context);
// Between a plain matrix of float32 and panels, whichever `packs` says. Queued; the event is owned
// by the caller.
Result<cl_event> convert_panels(Context& context, cl_command_queue queue, const PanelLayout& layout,
                                std::span<const std::int64_t> dims,
                                std::span<const std::int64_t> strides, Place plain, Place panels,
                                bool packs, std::vector<cl_event> waits);

}  // namespace backplane::opencl
