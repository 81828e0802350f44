// Index tensors.
#pragma once

#include "tensor.h"

#include <cstring>

namespace backplane::onednn {

inline bool is_index(bp_dtype dtype) {
  const auto type = type_of(dtype);
  return type == Type::kI64 || type == Type::kI32;
}
inline std::int64_t read_index(Type type, const std::byte* at) {
  if (type == Type::kI64) {
    std::int64_t v;
    std::memcpy(&v, at, sizeof v);
    return v;
  }
  std::int32_t v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

}  // namespace backplane::onednn
