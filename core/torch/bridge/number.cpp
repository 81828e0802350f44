#include "core/torch/bridge/number.h"

#include <c10/core/DefaultDtype.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "core/torch/bridge/dtype.h"

namespace backplane::bridge {

namespace {

using c10::Scalar;
using c10::ScalarType;

template <class Float>
bool fits_float(double value) {
  if (!std::isfinite(value)) return true;
  return std::abs(value) <= static_cast<double>(std::numeric_limits<Float>::max()) &&
         (value == 0 || static_cast<double>(static_cast<Float>(value)) != 0);
}

template <class Int>
bool fits_int(const Scalar& number) {
  if (number.isFloatingPoint()) {
    const double value = number.toDouble();
    constexpr double kEnd = 9223372036854775808.0;  // 2^63: the first that no int64 holds
    if (value != std::trunc(value) || value < -kEnd || value >= kEnd) return false;
    return std::in_range<Int>(static_cast<std::int64_t>(value));
  }
  return std::in_range<Int>(number.toLong());
}

bool fits_real(double value, ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Half:
    case ScalarType::ComplexHalf:
      return fits_float<c10::Half>(value);
    case ScalarType::BFloat16:
      return fits_float<c10::BFloat16>(value);
    case ScalarType::Float:
    case ScalarType::ComplexFloat:
      return fits_float<float>(value);
    default:
      return true;
  }
}

// Whether a value of the dtype says the same; not 0 instead of something small.
bool fits(const Scalar& number, ScalarType dtype) {
  if (number.isComplex()) {
    const c10::complex<double> value = number.toComplexDouble();
    if (!c10::isComplexType(dtype)) return value.imag() == 0 && fits(Scalar(value.real()), dtype);
    return fits_real(value.real(), dtype) && fits_real(value.imag(), dtype);
  }
  switch (dtype) {
    case ScalarType::Bool:
      return number.isBoolean() || (fits_int<std::int8_t>(number) && number.toLong() >> 1 == 0);
    case ScalarType::Byte:
      return fits_int<std::uint8_t>(number);
    case ScalarType::Char:
      return fits_int<std::int8_t>(number);
    case ScalarType::Short:
      return fits_int<std::int16_t>(number);
    case ScalarType::Int:
      return fits_int<std::int32_t>(number);
    case ScalarType::Long:
      return fits_int<std::int64_t>(number);
    default:
      return fits_real(number.toDouble(), dtype);
  }
}

// What a short float has as 0; kernels compute in float32.
bool is_small_for(const Scalar& number, ScalarType dtype) {
  return c10::isReducedFloatingType(dtype) && !number.isComplex() &&
         std::abs(number.toDouble()) < 1 && fits(number, ScalarType::Float);
}

// As PyTorch promotes: the dtype of the tensor `beside`, unless the number's own kind is higher.
ScalarType number_type(ScalarType number, std::optional<ScalarType> beside) {
  const ScalarType default_float = c10::get_default_dtype_as_scalartype();
  if (c10::isComplexType(number)) {
    if (beside && c10::isComplexType(*beside)) return *beside;
    return c10::toComplexType(beside && c10::isFloatingType(*beside) ? *beside : default_float);
  }
  const bool is_float = c10::isFloatingType(number);
  if (beside) {
    const bool higher = (is_float && c10::isIntegralType(*beside, /*includeBool=*/true)) ||
                        (number != ScalarType::Bool && *beside == ScalarType::Bool);
    if (!higher) return *beside;
  }
  return is_float ? default_float : number;
}

// "mul" of "aten.mul_.Scalar"
std::string_view base_name(std::string_view op) {
  if (const std::size_t dot = op.find('.'); dot != std::string_view::npos)
    op.remove_prefix(dot + 1);
  op = op.substr(0, op.find('.'));
  if (op.ends_with('_')) op.remove_suffix(1);
  return op;
}

template <std::size_t kCount>
bool is_one_of(std::string_view name, const std::array<std::string_view, kCount>& names) {
  return std::ranges::find(names, name) != names.end();
}

constexpr std::array<std::string_view, 3> kScales{"mul", "div", "floor_divide"};
constexpr std::array<std::string_view, 3> kSums{"add", "sub", "rsub"};
constexpr std::array<std::string_view, 3> kThresholds{"hardshrink", "hardshrink_backward",
                                                      "softshrink_backward"};

bool is_scale(std::string_view op, std::string_view argument) {
  return argument == "other" && is_one_of(base_name(op), kScales);
}

double round_to(double value, ScalarType dtype) {
  if (dtype == ScalarType::Half) return c10::Half(static_cast<float>(value));
  return c10::BFloat16(static_cast<float>(value));
}

// "300 is no Byte"
std::string misfit_text(const Scalar& number, ScalarType dtype) {
  std::ostringstream text;
  text << number << " is no " << c10::toString(dtype);
  return text.str();
}

}  // namespace

bool holds(const Scalar& number, ScalarType dtype) {
  return fits(number, dtype) || is_small_for(number, dtype);
}

bool is_rounded(std::string_view op, std::string_view argument) {
  if (argument == "other" || argument == "self" || argument == "exponent" ||
      argument == "tensor1" || argument == "tensor2")
    return !is_scale(op, argument) && base_name(op) != "float_power";
  if (argument == "alpha") return is_one_of(base_name(op), kSums);
  return argument == "lambd" && is_one_of(base_name(op), kThresholds);
}

Scalar rounded_number(std::string_view op, std::string_view argument, const Scalar& number,
                      std::optional<ScalarType> beside) {
  if (!beside || !c10::isReducedFloatingType(*beside) || number.isComplex() || number.isBoolean() ||
      !holds(number, *beside) || !is_rounded(op, argument))
    return number;
  const double exact = number.toDouble(), rounded = round_to(exact, *beside);
  if (rounded == exact || std::isnan(exact)) return number;
  return number.isFloatingPoint() ? Scalar(rounded) : Scalar(static_cast<std::int64_t>(rounded));
}

NumberOperand number_operand(std::string_view op, std::string_view argument, const Scalar& number,
                             std::optional<ScalarType> beside, ScalarType result) {
  const ScalarType dtype = number_type(number.type(), beside);
  const bool is_short = c10::isReducedFloatingType(dtype);
  if (is_short && is_scale(op, argument) && fits(number, ScalarType::Float) && holds(number, dtype))
    return {ScalarType::Float, {}};
  if (fits(number, dtype) || (is_short && is_small_for(number, dtype))) return {dtype, {}};
  if (c10::isFloatingType(result) && !c10::isFloatingType(dtype) && fits(number, result))
    return {result, {}};
  return {number.type(), misfit_text(number, dtype)};
}

std::string attribute_misfit(const Scalar& number, std::optional<ScalarType> first,
                             ScalarType result) {
  const auto misfit = [&](ScalarType dtype) {
    if (holds(number, dtype)) return std::string();
    return misfit_text(number, dtype);
  };
  // Bools are the results of comparisons, too.
  if (result != ScalarType::Bool || !first || first == ScalarType::Bool)
    if (std::string text = misfit(result); !text.empty()) return text;
  return first ? misfit(number_type(number.type(), first)) : std::string();
}

}  // namespace backplane::bridge
