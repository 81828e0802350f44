// Numbers, strings and names in the text form; shared by printer and parser.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/ir/types.h"

namespace backplane::ir {

// Shortest text that reads back as the same number; always with '.', 'e', "inf" or "nan".
std::string format_float(double value);
std::string format_float(float value);

// One element of a constant, as "1.5", "-3", "true"; null where only hex keeps all its bits.
std::optional<std::string> format_element(DType dtype, const std::uint8_t* bytes);
// The reverse: writes dtype_bytes(dtype) bytes. False where `text` is no such element.
bool parse_element(DType dtype, std::string_view text, std::uint8_t* out_bytes);

// "text" with \" \\ \n \t \r and \xHH.
std::string quote(std::string_view text);

// [A-Za-z0-9_.$]+, what may follow % or @ without quotes.
bool is_plain_name(std::string_view name);
bool is_name_char(char c);
// [A-Za-z_][A-Za-z0-9_]*
bool is_identifier(std::string_view name);
// [A-Za-z_][A-Za-z0-9_.:]*, without a single ':' or one at the end.
bool is_op_name(std::string_view name);
// Words with a meaning of their own where a dim class could stand: true, none, inf, f32, ...
bool is_reserved_word(std::string_view name);

}  // namespace backplane::ir
