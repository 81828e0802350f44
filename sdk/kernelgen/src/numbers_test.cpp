#include <backplane/kernelgen/numbers.hpp>

#include <gtest/gtest.h>

namespace backplane::kernelgen {
namespace {

const char* const kText =
    "void BP_ENTRY(BP_GLOBAL uchar* b0, ulong o0) {\n"
    "  float kept[384]; float16 w2 = ((float16)(0x1.8p-3f));\n"
    "  for (int a1 = 0; a1 < 384; ++a1) t0[a1 * 12L + 7UL] = kept[5] * 0x1p+0 - 1.0f;\n}\n";

TEST(NumbersTest, NamesAndBracketsAreNoNumbers) {
  const NumberedText split = split_numbers(kText);
  EXPECT_EQ(split.numbers,
            (std::vector<std::string>{"0x1.8p-3f", "0", "384", "12L", "7UL", "0x1p+0", "1.0f"}));
  EXPECT_EQ(open_numbers(split, Openings(7, kKept)), kText);
}

TEST(NumbersTest, OpenNumbersAreParametersOfTheirType) {
  const NumberedText split = split_numbers(kText);
  const std::string text = open_numbers(split, {0, kKept, 2, 3, 4, 5, kKept});
  EXPECT_NE(text.find("ulong o0, ulong passed_0, ulong passed_2, ulong passed_3, ulong passed_4, "
                      "ulong passed_5) {\n"),
            std::string::npos)
      << text;
  for (const char* line :
       {"const float number_0 = BP_BITS_F32(passed_0);", "const int number_2 = (int)passed_2;",
        "const long number_3 = (long)passed_3;", "const ulong number_4 = passed_4;",
        "const double number_5 = BP_BITS_F64(passed_5);", "a1 < number_2;",
        "t0[a1 * number_3 + number_4] = kept[5] * number_5 - 1.0f;", "float kept[384];"})
    EXPECT_NE(text.find(line), std::string::npos) << line << " in " << text;
}

TEST(NumbersTest, NumbersThatAreAlwaysTheSameAreOneParameter) {
  const NumberedText split = split_numbers("void f(ulong o) {\n  a(3, 4, 3, 5000000000);\n}\n");
  const std::string text = open_numbers(split, {0, kKept, 0, 3});
  EXPECT_NE(text.find("(ulong o, ulong passed_0, ulong passed_3) {"), std::string::npos) << text;
  EXPECT_NE(text.find("a(number_0, 4, number_0, number_3);"), std::string::npos) << text;
  EXPECT_NE(text.find("const long number_3 = (long)passed_3;"), std::string::npos) << text;
}

TEST(NumbersTest, ANumberIsPassedInItsBits) {
  EXPECT_EQ(number_bits("12L"), 12U);
  EXPECT_EQ(number_bits("7UL"), 7U);
  EXPECT_EQ(number_bits("1.0f"), 0x3f800000U);
  EXPECT_EQ(number_bits("0x1.8p+1f"), 0x40400000U);
  EXPECT_EQ(number_bits("0x1p+0"), 0x3ff0000000000000U);
}

}  // namespace
}  // namespace backplane::kernelgen
