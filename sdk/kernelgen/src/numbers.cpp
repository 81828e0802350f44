#include <backplane/kernelgen/numbers.hpp>

#include <bit>
#include <cctype>
#include <cstdlib>

namespace backplane::kernelgen {
namespace {

constexpr char kPlace = '\x01';

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; }

enum class Kind { kInt, kLong, kULong, kFloat, kDouble };
Kind kind_of(const std::string& number) {
  const bool hex = number.starts_with("0x");
  if (number.find_first_of(hex ? ".p" : ".e") != std::string::npos)
    return number.back() == 'f' ? Kind::kFloat : Kind::kDouble;
  if (number.ends_with("UL")) return Kind::kULong;
  if (number.back() == 'L') return Kind::kLong;
  // As in C, where it does not fit in an int.
  return std::strtoull(number.c_str(), nullptr, 0) > INT32_MAX ? Kind::kLong : Kind::kInt;
}

// Past the number that starts at `at`.
std::size_t end_of_number(const std::string& text, std::size_t at) {
  const bool hex = text.compare(at, 2, "0x") == 0;
  while (at < text.size()) {
    const bool sign = (text[at] == '+' || text[at] == '-') && text[at - 1] == (hex ? 'p' : 'e');
    if (!is_word(text[at]) && text[at] != '.' && !sign) break;
    ++at;
  }
  return at;
}

}  // namespace

NumberedText split_numbers(const std::string& text) {
  NumberedText out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at + 1;
    if (is_digit(text[at])) {
      end = end_of_number(text, at);
      const bool bracketed = at > 0 && text[at - 1] == '[' && end < text.size() && text[end] == ']';
      if (!bracketed) {
        out.pattern += kPlace;
        out.numbers.push_back(text.substr(at, end - at));
        at = end;
        continue;
      }
    } else if (is_word(text[at])) {
      while (end < text.size() && is_word(text[end])) ++end;
    }
    out.pattern.append(text, at, end - at);
    at = end;
  }
  return out;
}

std::string open_numbers(const NumberedText& text, const Openings& open) {
  std::string parameters, declarations, body;
  std::size_t which = 0;
  for (const char c : text.pattern) {
    if (c != kPlace) {
      body += c;
      continue;
    }
    const std::string& number = text.numbers[which];
    if (open[which] == kKept) {
      body += number;
    } else if (open[which] != which) {
      body += "number_" + std::to_string(open[which]);
    } else {
      const std::string n = std::to_string(which), passed = "passed_" + n, name = "number_" + n;
      parameters.append(", ulong ").append(passed);
      const auto declare = [&](const char* type, const char* before, const char* after) {
        declarations.append("  const ").append(type).append(" ").append(name).append(" = ");
        declarations.append(before).append(passed).append(after).append(";\n");
      };
      switch (kind_of(number)) {
        case Kind::kInt:
          declare("int", "(int)", "");
          break;
        case Kind::kLong:
          declare("long", "(long)", "");
          break;
        case Kind::kULong:
          declare("ulong", "", "");
          break;
        case Kind::kFloat:
          declare("float", "BP_BITS_F32(", ")");
          break;
        case Kind::kDouble:
          declare("double", "BP_BITS_F64(", ")");
          break;
      }
      body += name;
    }
    ++which;
  }
  constexpr std::string_view kHead = ") {\n";
  if (const std::size_t at = body.find(kHead); at != std::string::npos) {
    body.insert(at + kHead.size(), declarations);
    body.insert(at, parameters);
  }
  return body;
}

std::uint64_t number_bits(const std::string& number) {
  switch (kind_of(number)) {
    case Kind::kFloat:
      return std::bit_cast<std::uint32_t>(std::strtof(number.c_str(), nullptr));
    case Kind::kDouble:
      return std::bit_cast<std::uint64_t>(std::strtod(number.c_str(), nullptr));
    default:
      return std::strtoull(number.c_str(), nullptr, 0);
  }
}

}  // namespace backplane::kernelgen
