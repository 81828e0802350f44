// Layout ids name a format by themselves, and packing keeps every element.
#include "packing.h"

#include <gtest/gtest.h>

#include <numeric>

namespace backplane::onednn {
namespace {

using Tag = dnnl::memory::format_tag;

TEST(Packing, IdsComeBack) {
  for (const WeightKind kind : {WeightKind::kLinear, WeightKind::kMatrix, WeightKind::kConvolution,
                                WeightKind::kTransposedConvolution})
    for (const std::uint16_t groups : {std::uint16_t{1}, std::uint16_t{96}}) {
      const PackedLayout layout{kind, groups, Tag::BA16a64b};
      const auto back = parse_layout_id(layout_id(layout));
      ASSERT_TRUE(back);
      EXPECT_EQ(back->kind, kind);
      EXPECT_EQ(back->groups, groups);
      EXPECT_EQ(back->tag, Tag::BA16a64b);
    }
}

TEST(Packing, StrangeIdsAreRefused) {
  const std::uint64_t good = layout_id({WeightKind::kLinear, 1, Tag::BA16a64b});
  EXPECT_FALSE(parse_layout_id(0));
  EXPECT_FALSE(parse_layout_id(~std::uint64_t{0}));
  EXPECT_FALSE(parse_layout_id(good + (std::uint64_t{1} << 48)));    // another release
  EXPECT_FALSE(parse_layout_id(good & ~std::uint64_t{0xffff0000}));  // no groups
  EXPECT_FALSE(parse_layout_id((good & ~std::uint64_t{0xffff}) | 0xffff));
}

void round_trip(const PackedLayout& layout, const Shape& dims, const Shape& strides) {
  const auto plain = plain_desc(layout, Type::kF32, dims, strides);
  const auto packed = packed_desc(layout, Type::kF32, dims);
  std::vector<float> in(plain.get_size() / 4), out(in.size(), -1), middle(packed.get_size() / 4);
  std::iota(in.begin(), in.end(), 1.0F);
  std::size_t bytes = 0;
  const Runnable there = make_reorder(plain, packed, &bytes);
  std::vector<std::byte> scratch(bytes + 64);
  void* first[] = {in.data(), middle.data(), scratch.data()};
  there.run(first);
  const Runnable back = make_reorder(packed, plain, &bytes);
  scratch.resize(bytes + 64);
  void* second[] = {middle.data(), out.data(), scratch.data()};
  back.run(second);
  EXPECT_EQ(in, out);
}

TEST(Packing, RoundTrips) {
  round_trip({WeightKind::kLinear, 1, Tag::BA16a64b}, {100, 70}, {70, 1});
  round_trip({WeightKind::kLinear, 1, Tag::BA16a64b}, {100, 70}, {1, 100});
  round_trip({WeightKind::kMatrix, 1, Tag::BA16a48b}, {70, 100}, {100, 1});
  round_trip({WeightKind::kConvolution, 1, Tag::Acdb16a}, {20, 3, 5, 5}, {75, 25, 5, 1});
  round_trip({WeightKind::kConvolution, 4, Tag::abcde}, {8, 2, 3, 3}, {18, 9, 3, 1});
  round_trip({WeightKind::kTransposedConvolution, 1, Tag::Acdb16a}, {6, 20, 2, 2}, {80, 4, 2, 1});
}

TEST(Packing, FindsTheTag) {
  const dnnl::memory::desc desc({64, 128}, dnnl::memory::data_type::f32, Tag::BA16a64b);
  const Tag found = find_tag(desc);
  EXPECT_TRUE(dnnl::memory::desc({64, 128}, dnnl::memory::data_type::f32, found) == desc);
}

}  // namespace
}  // namespace backplane::onednn
