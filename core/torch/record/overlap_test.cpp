#include "core/torch/record/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace backplane::record {
namespace {

struct View {
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes, strides;

  Elements elements() const { return {offset, sizes, strides}; }

  std::vector<std::int64_t> places() const {
    std::vector<std::int64_t> out{offset};
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      std::vector<std::int64_t> next;
      for (const std::int64_t place : out)
        for (std::int64_t i = 0; i < sizes[d]; ++i) next.push_back(place + i * strides[d]);
      out = std::move(next);
    }
    return out;
  }
};

TEST(Overlap, HalvesOfRowsAreApart) {
  const View left{0, {4, 8}, {16, 1}}, right{8, {4, 8}, {16, 1}}, middle{7, {4, 8}, {16, 1}};
  EXPECT_FALSE(share_element(left.elements(), right.elements()));
  EXPECT_TRUE(share_element(left.elements(), middle.elements()));
}

TEST(Overlap, EverySecondElementIsApartFromTheOthers) {
  const View even{0, {4, 8}, {16, 2}}, odd{1, {4, 8}, {16, 2}};
  EXPECT_FALSE(share_element(even.elements(), odd.elements()));
  EXPECT_TRUE(share_element(even.elements(), even.elements()));
}

TEST(Overlap, AgreesWithAllPlacesCounted) {
  std::mt19937 random(7);
  const auto number = [&](int least, int most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  int shared = 0, twice = 0;
  for (int round = 0; round < 5000; ++round) {
    View views[2];
    for (View& view : views) {
      view.offset = number(0, 12);
      for (std::int64_t d = number(0, 3); d > 0; --d) {
        view.sizes.push_back(number(0, 4));
        view.strides.push_back(number(0, 9));
      }
    }
    const std::vector<std::int64_t> a = views[0].places(), b = views[1].places();
    const std::set<std::int64_t> in_a(a.begin(), a.end());
    bool expected = false;
    for (const std::int64_t place : b) expected = expected || in_a.contains(place);
    EXPECT_EQ(share_element(views[0].elements(), views[1].elements()), expected) << round;
    EXPECT_EQ(has_element_twice(views[0].elements()), in_a.size() < a.size()) << round;
    shared += expected;
    twice += in_a.size() < a.size();
  }
  EXPECT_GT(shared, 500);
  EXPECT_GT(twice, 500);
}

}  // namespace
}  // namespace backplane::record
