// Rows of dense tensors as floats: read where they lie, or converted through a row of scratch.
#pragma once

#include "kernels/rows/block.h"

namespace backplane::onednn {

class RowReader {
 public:
  RowReader() = default;
  explicit RowReader(Type type) : type_(type), load_(load_function(type, Domain::kF32)) {}
  bool direct() const { return type_ == Type::kF32; }
  // Elements [first, first + n) of `data`; `room` holds n floats and is used if not direct.
  const float* operator()(const std::byte* data, std::int64_t first, std::int64_t n,
                          float* room) const {
    if (direct()) return reinterpret_cast<const float*>(data) + first;
    load_(room, data + first * bytes_of(type_), 1, n);
    return room;
  }

 private:
  Type type_ = Type::kF32;
  LoadFunction load_ = nullptr;
};

class RowWriter {
 public:
  RowWriter() = default;
  explicit RowWriter(Type type) : type_(type), store_(store_function(type, Domain::kF32)) {}
  bool direct() const { return type_ == Type::kF32; }
  // Where to compute n elements from `first` on; then commit() the same.
  float* begin(std::byte* data, std::int64_t first, float* room) const {
    return direct() ? reinterpret_cast<float*>(data) + first : room;
  }
  void commit(std::byte* data, std::int64_t first, std::int64_t n, const float* room) const {
    if (!direct()) store_(data + first * bytes_of(type_), 1, room, n);
  }
  void put(std::byte* data, std::int64_t first, std::int64_t n, const float* from) const {
    store_(data + first * bytes_of(type_), 1, from, n);
  }

 private:
  Type type_ = Type::kF32;
  StoreFunction store_ = store_function(Type::kF32, Domain::kF32);
};

inline bool is_f32_or_bf16(bp_dtype dtype) {
  const auto type = type_of(dtype);
  return type == Type::kF32 || type == Type::kBF16;
}

}  // namespace backplane::onednn
