#include "core/ir/literal.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace backplane::ir {
namespace {

template <class T>
T load(const std::uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class T>
void store(T value, std::uint8_t* out_bytes) {
  std::memcpy(out_bytes, &value, sizeof value);
}

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -subnormal : subnormal;
}

// Rounds to nearest, ties to even.
std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x1p-14f) {
    return static_cast<std::uint16_t>(sign | static_cast<int>(std::nearbyint(magnitude * 0x1p24f)));
  }
  std::uint32_t rounded = bits & 0x7fffffffu;
  rounded += 0xfffu + ((rounded >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

std::uint16_t float_to_bfloat16(float value) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<std::uint16_t>(bits >> 16);
}

template <class T>
std::string format_number(T value) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return std::string(buffer, end);
}

template <class T>
std::string format_float_as(T value) {
  if (std::isnan(value)) return "nan";
  std::string text = format_number(value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

template <class T>
bool parse_number(std::string_view text, T& out_value) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out_value);
  return code == std::errc() && end == text.data() + text.size();
}

template <class T>
bool parse_to(std::string_view text, std::uint8_t* out_bytes) {
  T value{};
  if (!parse_number(text, value)) return false;
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(value)) value = std::numeric_limits<T>::quiet_NaN();
  }
  store(value, out_bytes);
  return true;
}

}  // namespace

std::string format_float(double value) { return format_float_as(value); }
std::string format_float(float value) { return format_float_as(value); }

std::optional<std::string> format_element(DType dtype, const std::uint8_t* bytes) {
  std::string text;
  switch (dtype) {
    case DType::kFloat16:
      text = format_float(half_to_float(load<std::uint16_t>(bytes)));
      break;
    case DType::kBFloat16: {
      const auto bits = static_cast<std::uint32_t>(load<std::uint16_t>(bytes)) << 16;
      text = format_float(std::bit_cast<float>(bits));
      break;
    }
    case DType::kFloat32:
      text = format_float(load<float>(bytes));
      break;
    case DType::kFloat64:
      text = format_float(load<double>(bytes));
      break;
    case DType::kInt8:
      text = std::to_string(load<std::int8_t>(bytes));
      break;
    case DType::kInt16:
      text = std::to_string(load<std::int16_t>(bytes));
      break;
    case DType::kInt32:
      text = std::to_string(load<std::int32_t>(bytes));
      break;
    case DType::kInt64:
      text = std::to_string(load<std::int64_t>(bytes));
      break;
    case DType::kUInt8:
      text = std::to_string(load<std::uint8_t>(bytes));
      break;
    case DType::kUInt16:
      text = std::to_string(load<std::uint16_t>(bytes));
      break;
    case DType::kUInt32:
      text = std::to_string(load<std::uint32_t>(bytes));
      break;
    case DType::kUInt64:
      text = std::to_string(load<std::uint64_t>(bytes));
      break;
    case DType::kBool:
      if (bytes[0] > 1) return std::nullopt;
      return bytes[0] != 0 ? "true" : "false";
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128:
      return std::nullopt;
  }
  // NaNs with a payload and the like.
  std::uint8_t back[16];
  const auto size = static_cast<std::size_t>(dtype_bytes(dtype));
  if (!parse_element(dtype, text, back) || std::memcmp(back, bytes, size) != 0) return std::nullopt;
  return text;
}

bool parse_element(DType dtype, std::string_view text, std::uint8_t* out_bytes) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16: {
      float value = 0;
      if (!parse_number(text, value)) return false;
      if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
      store(dtype == DType::kFloat16 ? float_to_half(value) : float_to_bfloat16(value), out_bytes);
      return true;
    }
    case DType::kFloat32:
      return parse_to<float>(text, out_bytes);
    case DType::kFloat64:
      return parse_to<double>(text, out_bytes);
    case DType::kInt8:
      return parse_to<std::int8_t>(text, out_bytes);
    case DType::kInt16:
      return parse_to<std::int16_t>(text, out_bytes);
    case DType::kInt32:
      return parse_to<std::int32_t>(text, out_bytes);
    case DType::kInt64:
      return parse_to<std::int64_t>(text, out_bytes);
    case DType::kUInt8:
      return parse_to<std::uint8_t>(text, out_bytes);
    case DType::kUInt16:
      return parse_to<std::uint16_t>(text, out_bytes);
    case DType::kUInt32:
      return parse_to<std::uint32_t>(text, out_bytes);
    case DType::kUInt64:
      return parse_to<std::uint64_t>(text, out_bytes);
    case DType::kBool:
      if (text != "true" && text != "false") return false;
      out_bytes[0] = text == "true" ? 1 : 0;
      return true;
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128:
      break;
  }
  return false;
}

std::string quote(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (c == '\r') {
      quoted += "\\r";
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += "\\x";
      quoted += kHex[byte >> 4];
      quoted += kHex[byte & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '$';
}

bool is_plain_name(std::string_view name) {
  for (char c : name) {
    if (!is_name_char(c)) return false;
  }
  return !name.empty();
}

bool is_identifier(std::string_view name) {
  for (char c : name) {
    if (!is_name_char(c) || c == '.' || c == '$') return false;
  }
  return !name.empty() && !(name[0] >= '0' && name[0] <= '9');
}

bool is_op_name(std::string_view name) {
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == ':') {
      if (i + 2 >= name.size() || name[i + 1] != ':') return false;
      ++i;
    } else if (!is_name_char(name[i]) || name[i] == '$') {
      return false;
    }
  }
  return !name.empty() && is_identifier(name.substr(0, 1));
}

bool is_reserved_word(std::string_view name) {
  return name == "true" || name == "false" || name == "none" || name == "inf" || name == "nan" ||
         name == "hex" || name == "opaque" || name == "floats" || name == "bools" ||
         name == "min" || name == "max" || find_dtype(name).has_value();
}

}  // namespace backplane::ir
