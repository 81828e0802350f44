// Element types and shape arithmetic shared by the kernels.
#pragma once

#include <backplane/sdk/program.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace backplane::onednn {

using Shape = std::vector<std::int64_t>;

enum class Type : std::uint8_t { kF32, kBF16, kF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool };

std::optional<Type> type_of(bp_dtype dtype);
// For dtypes that a check has admitted.
Type known_type(bp_dtype dtype);
std::int64_t bytes_of(Type type);

inline bool is_float(Type t) { return t <= Type::kF64; }
inline bool is_integral(Type t) { return t > Type::kF64; }  // bool too

// PyTorch's promotion of two element types.
Type promote(Type a, Type b);

// bfloat16 and float16 in memory.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};
// Any byte but 0 is true: a tensor of bytes may be viewed as one of truth values.
struct Bool {
  std::uint8_t byte;
};
float to_float(BFloat16 v);
float to_float(Float16 v);
BFloat16 to_bfloat16(float v);  // round to nearest even
Float16 to_float16(float v);

std::int64_t product(std::span<const std::int64_t> dims);
using sdk::wrap_dim;
// Strides of `spec` over `dims`, 0 where it is broadcast.
Shape broadcast_strides(const sdk::TensorSpec& spec, const Shape& dims);

// Calls f with a value of the C++ type that holds `type` in memory.
template <class F>
decltype(auto) with_type(Type type, F&& f) {
  switch (type) {
    case Type::kF32:
      return f(float{});
    case Type::kBF16:
      return f(BFloat16{});
    case Type::kF16:
      return f(Float16{});
    case Type::kF64:
      return f(double{});
    case Type::kI64:
      return f(std::int64_t{});
    case Type::kI32:
      return f(std::int32_t{});
    case Type::kI16:
      return f(std::int16_t{});
    case Type::kI8:
      return f(std::int8_t{});
    case Type::kU8:
      return f(std::uint8_t{});
    case Type::kBool:
      break;
  }
  return f(Bool{});
}
// Calls f with an unsigned integer of the element's size: for code that only moves elements.
template <class F>
decltype(auto) with_size(std::int64_t bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    default:
      return f(std::uint64_t{});
  }
}

// Several tensors walked together over `dims`; neighbouring dims that are dense in each other in
// every tensor are merged. Strides in elements of each tensor.
struct Walk {
  Shape dims;
  std::vector<Shape> strides;  // per tensor

  Walk(Shape over, std::vector<Shape> of);
  // Reorders dims so that tensor `which` is walked in memory order, then merges.
  void sort_by(std::size_t which);
  void merge();
  std::int64_t inner() const { return dims.empty() ? 1 : dims.back(); }
  std::int64_t rows() const { return dims.empty() ? 1 : product({dims.data(), dims.size() - 1}); }
  std::int64_t inner_stride(std::size_t tensor) const {
    return dims.empty() ? 0 : strides[tensor].back();
  }
};

// Offsets (elements) of the rows of a walk of at most N tensors, from row `first` on.
template <std::size_t N>
class RowCursor {
 public:
  RowCursor(const Walk& walk, std::int64_t first) : walk_(walk) {
    const std::size_t outer = walk.dims.empty() ? 0 : walk.dims.size() - 1;
    at_.resize(outer);
    for (std::size_t d = outer; d-- > 0;) {
      at_[d] = first % walk.dims[d];
      first /= walk.dims[d];
      for (std::size_t k = 0; k < walk.strides.size(); ++k)
        offsets_[k] += at_[d] * walk.strides[k][d];
    }
  }
  std::int64_t offset(std::size_t tensor) const { return offsets_[tensor]; }
  void next() {
    for (std::size_t d = at_.size(); d-- > 0;) {
      for (std::size_t k = 0; k < walk_.strides.size(); ++k) offsets_[k] += walk_.strides[k][d];
      if (++at_[d] < walk_.dims[d]) return;
      for (std::size_t k = 0; k < walk_.strides.size(); ++k)
        offsets_[k] -= at_[d] * walk_.strides[k][d];
      at_[d] = 0;
    }
  }

 private:
  const Walk& walk_;
  std::array<std::int64_t, N> offsets_{};
  Shape at_;
};

}  // namespace backplane::onednn
