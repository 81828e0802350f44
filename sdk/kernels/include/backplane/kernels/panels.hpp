// Weights in the order that products read them: panels of columns, row after row, float32, zeros
// beyond the last column. Packed once per device instead of at every call.
#pragma once

#include <backplane/kernels/target.hpp>

#include <optional>

namespace backplane::kernels {

struct PanelLayout {
  bool transposed = false;  // the product's right factor is the weight's transpose
  std::int64_t width = 32;  // columns of a panel

  std::uint64_t id() const { return static_cast<std::uint64_t>(width) * 2 + (transposed ? 1 : 0); }
  static std::optional<PanelLayout> parse(std::uint64_t id);
  // For a product with `columns` of results; `wide`: columns of tiles where there are many.
  static PanelLayout choose(std::int64_t columns, bool transposed, std::int64_t wide);
  std::uint64_t bytes(std::span<const std::int64_t> weight_dims) const;
};

// Of a layout that a contract of these kernels names; an error where `desc` has another.
Result<PanelLayout> panel_layout(const sdk::TensorDesc& desc);

// The kernel that packs is built with the next programs.
void want_packing(Target& target);
// Between a plain matrix of float32 and panels, whichever `packs` says.
Status convert_panels(Target& target, Launcher& launcher, const PanelLayout& layout,
                      const sdk::TensorDesc& plain_desc, std::byte* plain, std::byte* panels,
                      bool packs);

}  // namespace backplane::kernels
