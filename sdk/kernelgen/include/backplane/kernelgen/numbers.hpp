// The numbers in a kernel's text as parameters: what was printed for one set of sizes runs others.
//
// Two texts of one pattern differ in numbers alone. Whichever of them are opened become parameters,
// and the text is then right for every value of theirs, because the printer wrote them so.
#pragma once

#include <backplane/kernelgen/kernel.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace backplane::kernelgen {

struct NumberedText {
  std::string pattern;               // the text without its numbers
  std::vector<std::string> numbers;  // in order; sizes and constant places in brackets stay
};
// `text` says "BP_ENTRY" for its name.
NumberedText split_numbers(const std::string& text);

// For each number of a text: kKept, its own place, or that of an earlier one which is the same
// wherever the text is used.
using Openings = std::vector<std::size_t>;
inline constexpr std::size_t kKept = SIZE_MAX;

// The text with a parameter of 64 bits (`ulong`) after its others, in order, for each number that
// stands for itself.
std::string open_numbers(const NumberedText& text, const Openings& open);
// What to pass for a number.
std::uint64_t number_bits(const std::string& number);

}  // namespace backplane::kernelgen
