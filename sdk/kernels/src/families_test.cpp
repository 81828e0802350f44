#include "families.hpp"

#include <gtest/gtest.h>

namespace backplane::kernels {
namespace {

kernelgen::Printed kernel(int points, int width) {
  return kernelgen::name_entry("void BP_ENTRY(ulong o) {\n  if (i >= " + std::to_string(points) +
                               ") return;\n  t[i * " + std::to_string(width) + "] = 0;\n}\n");
}

TEST(KernelFamiliesTest, TheThirdSizeBuildsNothing) {
  KernelFamilies families;
  const auto first = families.choose(1, kernel(10, 8));
  EXPECT_EQ(first.kernel.text, kernel(10, 8).text);
  EXPECT_TRUE(first.numbers.empty());
  const auto second = families.choose(1, kernel(11, 8));
  EXPECT_EQ(second.numbers, (std::vector<std::uint64_t>{11}));
  EXPECT_NE(second.kernel.text.find("* 8]"), std::string::npos);  // the same at both sizes
  const auto third = families.choose(1, kernel(12, 8));
  EXPECT_EQ(third.kernel.text, second.kernel.text);
  EXPECT_EQ(third.kernel.entry, second.kernel.entry);
  EXPECT_EQ(third.numbers, (std::vector<std::uint64_t>{12}));
  EXPECT_EQ(families.choose(1, kernel(10, 8)).kernel.text, first.kernel.text);
}

TEST(KernelFamiliesTest, ANumberThatChangesLaterOpensAsWell) {
  KernelFamilies families;
  families.choose(1, kernel(10, 8));
  families.choose(1, kernel(11, 8));
  const auto wider = families.choose(1, kernel(12, 16));
  EXPECT_EQ(wider.numbers, (std::vector<std::uint64_t>{12, 16}));
  EXPECT_EQ(families.choose(1, kernel(10, 32)).numbers, (std::vector<std::uint64_t>{10, 32}));
}

TEST(KernelFamiliesTest, PlacesKeepTheirOwnNumbers) {
  KernelFamilies families;
  families.choose(1, kernel(10, 8));
  EXPECT_TRUE(families.choose(2, kernel(99, 8)).numbers.empty());
}

TEST(KernelFamiliesTest, LaunchesKeepTheirSizes) {
  KernelFamilies families;
  kernelgen::Printed printed = kernel(10, 8);
  printed.items = 10;
  families.choose(1, printed);
  printed = kernel(20, 8);
  printed.items = 20;
  printed.group = 4;
  const auto chosen = families.choose(1, printed);
  EXPECT_EQ(chosen.kernel.items, 20U);
  EXPECT_EQ(chosen.kernel.group, 4U);
}

TEST(ShareKernelsTest, TextsThatDifferInNumbersAreOneKernel) {
  std::vector<kernelgen::Printed> kernels = {kernel(10, 8), kernel(11, 8), kernel(10, 8)};
  kernels[1].items = 11;
  const auto chosen = share_kernels(kernels);
  ASSERT_EQ(chosen.size(), 3U);
  EXPECT_EQ(chosen[0].kernel.text, chosen[1].kernel.text);
  EXPECT_EQ(chosen[0].kernel.entry, chosen[1].kernel.entry);
  EXPECT_NE(chosen[0].kernel.text.find("* 8]"), std::string::npos);
  EXPECT_EQ(chosen[0].numbers, (std::vector<std::uint64_t>{10}));
  EXPECT_EQ(chosen[1].numbers, (std::vector<std::uint64_t>{11}));
  EXPECT_EQ(chosen[2].numbers, (std::vector<std::uint64_t>{10}));
  EXPECT_EQ(chosen[1].kernel.items, 11U);
}

TEST(ShareKernelsTest, WhatIsAloneKeepsItsNumbers) {
  const kernelgen::Printed other =
      kernelgen::name_entry("void BP_ENTRY(ulong o) {\n  t[1] = 7;\n}\n");
  const auto chosen = share_kernels(std::vector{kernel(10, 8), other, kernel(10, 8)});
  EXPECT_EQ(chosen[0].kernel.text, kernel(10, 8).text);
  EXPECT_EQ(chosen[1].kernel.text, other.text);
  EXPECT_EQ(chosen[2].kernel.entry, chosen[0].kernel.entry);
  for (const auto& c : chosen) EXPECT_TRUE(c.numbers.empty());
}

}  // namespace
}  // namespace backplane::kernels
