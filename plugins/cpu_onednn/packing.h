// Packed weights: opaque layouts whose id says everything needed to make them from dense memory, in
// any process.
//
//   bits 63..56  kind of weight      bits 31..16  groups of a convolution
//   bits 55..48  oneDNN's release   bits 15..0   oneDNN's format tag
#pragma once

#include "kernels/primitives/dnnl_support.h"

namespace backplane::onednn {

enum class WeightKind : std::uint8_t {
  kLinear = 1,                 // [N, K] as aten.linear has it; packed as a [K, N] matmul operand
  kMatrix = 2,                 // [K, N] as aten.mm has it
  kConvolution = 3,            // [O, I / groups, ...]
  kTransposedConvolution = 4,  // [I, O / groups, ...]
};

struct PackedLayout {
  WeightKind kind;
  std::uint16_t groups = 1;
  dnnl::memory::format_tag tag;
};

std::uint64_t layout_id(const PackedLayout& layout);
// nullopt for an id this build does not know.
std::optional<PackedLayout> parse_layout_id(std::uint64_t id);

// The name of a format that a primitive chose; undef where it is none of the known ones.
dnnl::memory::format_tag find_tag(const dnnl::memory::desc& desc);

// Of the packed weight, as primitives see it. `dims` are the tensor's own.
dnnl::memory::desc packed_desc(const PackedLayout& layout, Type type, const Shape& dims);
// Of a strided weight, with the same logical dims.
dnnl::memory::desc plain_desc(const PackedLayout& layout, Type type, const Shape& dims,
                              const Shape& strides);

}  // namespace backplane::onednn
