#include "core/torch/bridge/dtype.h"

#include <array>

namespace backplane::bridge {

namespace {

using c10::ScalarType;
using ir::DType;

struct Pair {
  DType dtype;
  ScalarType type;
};
constexpr std::array<Pair, ir::kDTypeCount> kPairs{{
    {DType::kFloat16, ScalarType::Half},
    {DType::kBFloat16, ScalarType::BFloat16},
    {DType::kFloat32, ScalarType::Float},
    {DType::kFloat64, ScalarType::Double},
    {DType::kInt8, ScalarType::Char},
    {DType::kInt16, ScalarType::Short},
    {DType::kInt32, ScalarType::Int},
    {DType::kInt64, ScalarType::Long},
    {DType::kUInt8, ScalarType::Byte},
    {DType::kUInt16, ScalarType::UInt16},
    {DType::kUInt32, ScalarType::UInt32},
    {DType::kUInt64, ScalarType::UInt64},
    {DType::kBool, ScalarType::Bool},
    {DType::kComplex32, ScalarType::ComplexHalf},
    {DType::kComplex64, ScalarType::ComplexFloat},
    {DType::kComplex128, ScalarType::ComplexDouble},
}};

}  // namespace

std::optional<ir::DType> find_dtype(c10::ScalarType type) {
  for (const Pair& p : kPairs)
    if (p.type == type) return p.dtype;
  return std::nullopt;
}

c10::ScalarType to_scalar_type(ir::DType dtype) {
  for (const Pair& p : kPairs)
    if (p.dtype == dtype) return p.type;
  return ScalarType::Undefined;
}

}  // namespace backplane::bridge
