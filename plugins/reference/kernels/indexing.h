// Positions in memory, and moving single elements to and from them.
#pragma once

#include <cstring>
#include <vector>

#include "kernels/frame.h"

namespace backplane::reference {

// Offsets of all elements in row-major order, in elements.
inline std::vector<std::int64_t> offsets_of(const Tensor& t) {
  std::vector<std::int64_t> out;
  out.reserve(static_cast<std::size_t>(t.elements()));
  const Shape* strides[] = {&t.strides};
  for (Rows rows(t.dims, strides, false); rows.more(); rows.next())
    for (std::int64_t i = 0; i < rows.length(); ++i)
      out.push_back(rows.offset(0) + i * rows.stride(0));
  return out;
}

inline std::int64_t checked_index(std::int64_t index, std::int64_t size) {
  if (index < 0 || index >= size)
    throw KernelError("index " + std::to_string(index) +
                      " is out of bounds for dimension of size " + std::to_string(size));
  return index;
}
// For the operators whose negative indices count from the end.
inline std::int64_t wrapped_index(std::int64_t index, std::int64_t size) {
  return checked_index(index < 0 ? index + size : index, size);
}

// to[to_at[i]] = from[from_at[i]]; both of the same type.
inline void move_elements(const Tensor& to, const std::vector<std::int64_t>& to_at,
                          const Tensor& from, const std::vector<std::int64_t>& from_at) {
  const auto size = static_cast<std::size_t>(bytes_of(to.type));
  const auto move = [&](auto word) {
    constexpr std::size_t kSize = sizeof word;
    for (std::size_t i = 0; i < to_at.size(); ++i)
      std::memcpy(to.data + to_at[i] * static_cast<std::int64_t>(kSize),
                  from.data + from_at[i] * static_cast<std::int64_t>(kSize), kSize);
  };
  switch (size) {
    case 1:
      return move(std::uint8_t{});
    case 2:
      return move(std::uint16_t{});
    case 4:
      return move(std::uint32_t{});
    case 8:
      return move(std::uint64_t{});
    default:
      return move(Complex{});
  }
}

}  // namespace backplane::reference
