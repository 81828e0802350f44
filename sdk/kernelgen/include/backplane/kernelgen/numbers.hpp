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

// The text with parameters of 64 bits (`ulong`) after its others, in order, where `open`.
std::string open_numbers(const NumberedText& text, const std::vector<bool>& open);
// What to pass for a number.
std::uint64_t number_bits(const std::string& number);

}  // namespace backplane::kernelgen
