#include "core/torch/bridge/number.h"

#include <c10/core/DefaultDtype.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

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

NumberOperand number_operand(const Scalar& number, std::optional<ScalarType> beside,
                             ScalarType result) {
  const ScalarType dtype = number_type(number.type(), beside);
  if (fits(number, dtype)) return {dtype, {}};
  if (is_small_for(number, dtype)) return {ScalarType::Float, {}};
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
