#include "packing.h"

#include <algorithm>
#include <utility>

namespace backplane::onednn {
namespace {

// Format tags are numbered by oneDNN's release.
constexpr std::uint64_t kVersion = DNNL_VERSION_MAJOR * 32 + DNNL_VERSION_MINOR;
static_assert(kVersion < 256);

using Tag = dnnl::memory::format_tag;

}  // namespace

std::uint64_t layout_id(const PackedLayout& layout) {
  return (static_cast<std::uint64_t>(layout.kind) << 56) | (kVersion << 48) |
         (static_cast<std::uint64_t>(layout.groups) << 16) | static_cast<std::uint16_t>(layout.tag);
}

std::optional<PackedLayout> parse_layout_id(std::uint64_t id) {
  const std::uint64_t kind = id >> 56;
  if (kind < 1 || kind > 4 || ((id >> 48) & 0xff) != kVersion || ((id >> 32) & 0xffff) != 0)
    return std::nullopt;
  const auto tag = static_cast<dnnl_format_tag_t>(id & 0xffff);
  if (tag <= dnnl_format_tag_any || tag >= dnnl_format_tag_last) return std::nullopt;
  const auto groups = static_cast<std::uint16_t>((id >> 16) & 0xffff);
  if (groups == 0) return std::nullopt;
  return PackedLayout{static_cast<WeightKind>(kind), groups, static_cast<Tag>(tag)};
}

Tag find_tag(const dnnl::memory::desc& desc) {
  for (int t = dnnl_format_tag_any + 1; t < dnnl_format_tag_last; ++t) {
    const auto tag = static_cast<dnnl_format_tag_t>(t);
    dnnl_memory_desc_t made = nullptr;
    const auto dims = desc.get_dims();
    if (dnnl_memory_desc_create_with_tag(&made, static_cast<int>(dims.size()), dims.data(),
                                         static_cast<dnnl_data_type_t>(desc.get_data_type()),
                                         tag) != dnnl_success)
      continue;
    const bool same = dnnl_memory_desc_equal(made, desc.get()) != 0;
    dnnl_memory_desc_destroy(made);
    if (same) return static_cast<Tag>(tag);
  }
  return Tag::undef;
}

namespace {

// The weight's dims and strides as the primitive's logical ones.
void logical(const PackedLayout& layout, Shape& dims, Shape& strides) {
  const auto g = static_cast<std::int64_t>(layout.groups);
  switch (layout.kind) {
    case WeightKind::kLinear:
      std::swap(dims[0], dims[1]);
      std::swap(strides[0], strides[1]);
      break;
    case WeightKind::kMatrix:
      break;
    case WeightKind::kTransposedConvolution:  // [I, O/g] is, per group, [O/g, I/g]
      if (g > 1) {
        dims.insert(dims.begin(), g);
        dims[1] /= g;
        strides.insert(strides.begin(), strides[0] * dims[1]);
        std::swap(dims[1], dims[2]);
        std::swap(strides[1], strides[2]);
      } else {
        std::swap(dims[0], dims[1]);
        std::swap(strides[0], strides[1]);
      }
      break;
    case WeightKind::kConvolution:
      if (g > 1) {
        dims.insert(dims.begin(), g);
        dims[1] /= g;
        strides.insert(strides.begin(), strides[0] * dims[1]);
      }
      break;
  }
}

}  // namespace

dnnl::memory::desc packed_desc(const PackedLayout& layout, Type type, const Shape& dims) {
  Shape own = dims, strides(dims.size(), 0);
  logical(layout, own, strides);
  return dnnl::memory::desc(own, dnnl_type(type), layout.tag);
}

dnnl::memory::desc plain_desc(const PackedLayout& layout, Type type, const Shape& dims,
                              const Shape& strides) {
  Shape own = dims, steps = strides;
  logical(layout, own, steps);
  return dnnl_desc(type, own, steps);
}

}  // namespace backplane::onednn
