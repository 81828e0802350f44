// Element types, dims and tensor types of the graph IR.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::ir {

// Element types. The text form is `name`: f32, bf16, i64, b8, c64, ...
enum class DType : std::uint8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kBool,
  kComplex32,
  kComplex64,
  kComplex128,
};
inline constexpr int kDTypeCount = 16;

std::string_view dtype_name(DType dtype);
std::optional<DType> find_dtype(std::string_view name);
// Bytes of one element.
std::int64_t dtype_bytes(DType dtype);
bool is_float(DType dtype);  // f16, bf16, f32, f64
bool is_complex(DType dtype);
bool is_integer(DType dtype);  // without bool

// A size, stride or integer attribute: >= 0 (or any constant, for attributes held as such) is the
// number itself; a dim class is stored as kClassBase - index, so that negative attributes such as
// dim=-1 remain expressible.
class Dim {
 public:
  constexpr Dim() = default;
  constexpr Dim(std::int64_t number) : bits_(number) {}  // NOLINT(google-explicit-constructor)
  static constexpr Dim dim_class(std::uint32_t index) {
    Dim d;
    d.bits_ = kClassBase - static_cast<std::int64_t>(index);
    return d;
  }
  constexpr bool is_class() const { return bits_ <= kClassBase; }
  constexpr std::int64_t number() const { return bits_; }  // only where !is_class()
  constexpr std::uint32_t class_index() const {            // only where is_class()
    return static_cast<std::uint32_t>(kClassBase - bits_);
  }
  friend constexpr bool operator==(Dim a, Dim b) { return a.bits_ == b.bits_; }

 private:
  static constexpr std::int64_t kClassBase = -(std::int64_t{1} << 62);
  std::int64_t bits_ = 0;
};

// A tensor's element type, shape and strides (in elements). Strides are always given; they are what
// PyTorch's meta tensors say.
struct TensorType {
  DType dtype = DType::kFloat32;
  std::vector<Dim> dims;
  std::vector<Dim> strides;

  std::size_t rank() const { return dims.size(); }
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

// Row-major strides for constant dims; size-0 and size-1 dims count as 1, as in PyTorch.
std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& dims);

}  // namespace backplane::ir
