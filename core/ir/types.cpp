#include "core/ir/types.h"

#include <array>

namespace backplane::ir {
namespace {

struct DTypeRow {
  std::string_view name;
  std::int64_t bytes;
};

constexpr std::array<DTypeRow, kDTypeCount> kDTypes{{
    {"f16", 2},
    {"bf16", 2},
    {"f32", 4},
    {"f64", 8},
    {"i8", 1},
    {"i16", 2},
    {"i32", 4},
    {"i64", 8},
    {"u8", 1},
    {"u16", 2},
    {"u32", 4},
    {"u64", 8},
    {"b8", 1},
    {"c32", 4},
    {"c64", 8},
    {"c128", 16},
}};

}  // namespace

std::string_view dtype_name(DType dtype) {
  const auto i = static_cast<std::size_t>(dtype);
  return i < kDTypes.size() ? kDTypes[i].name : "invalid";
}

std::optional<DType> find_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::int64_t dtype_bytes(DType dtype) {
  const auto i = static_cast<std::size_t>(dtype);
  return i < kDTypes.size() ? kDTypes[i].bytes : 0;
}

bool is_float(DType dtype) { return dtype <= DType::kFloat64; }

bool is_complex(DType dtype) { return dtype >= DType::kComplex32 && dtype <= DType::kComplex128; }

bool is_integer(DType dtype) { return dtype >= DType::kInt8 && dtype <= DType::kUInt64; }

std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& dims) {
  std::vector<std::int64_t> strides(dims.size());
  std::int64_t running = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    strides[i] = running;
    if (dims[i] > 1) running *= dims[i];
  }
  return strides;
}

}  // namespace backplane::ir
