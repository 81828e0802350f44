// Index tensors.
#pragma once

#include <backplane/sdk/program.hpp>

#include <cstring>
#include <optional>
#include <vector>

#include "kernels/kernel_registry.h"
#include "tensor.h"

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

inline constexpr std::size_t kMostIndices = 8;
inline constexpr std::int64_t kPlaces = 256;  // resolved at once

// A walk over two tensors, of which indices choose places in one, and then over those indices.
using IndexedCursor = RowCursor<2 + kMostIndices>;

struct Indices {
  struct Index {
    std::size_t operand;
    Type type;
    std::int64_t limit, step;  // of the indexed dim: its size, and its stride in elements
  };
  std::vector<Index> all;
  bool wraps = false;  // negative ones count from the end

  // Whether no index changes along a row.
  bool are_fixed_along(const Walk& walk) const {
    bool fixed = true;
    for (std::size_t k = 0; k < all.size(); ++k)
      fixed = fixed && (walk.inner() == 1 || walk.inner_stride(2 + k) == 0);
    return fixed;
  }

  // Offsets in tensor `base` of the walk of elements [first, first + n) of the row that the cursor
  // is at. False where an index is out of range; the offsets are then not to be used.
  [[nodiscard]] bool resolve(const sdk::KernelCall& call, const Walk& walk, const IndexedCursor& at,
                             std::size_t base, std::int64_t first, std::int64_t n,
                             std::int64_t* places) const {
    for (std::int64_t i = 0; i < n; ++i)
      places[i] = at.offset(base) + (first + i) * walk.inner_stride(base);
    bool inside = true;
    for (std::size_t k = 0; k < all.size(); ++k) {
      const std::int64_t stride = walk.inner_stride(2 + k);
      const std::byte* from = call.operands[all[k].operand] +
                              (at.offset(2 + k) + first * stride) * bytes_of(all[k].type);
      inside =
          (all[k].type == Type::kI64
               ? add(all[k], reinterpret_cast<const std::int64_t*>(from), stride, places, n)
               : add(all[k], reinterpret_cast<const std::int32_t*>(from), stride, places, n)) &&
          inside;
    }
    return inside;
  }

 private:
  template <class T>
  bool add(const Index& index, const T* values, std::int64_t stride, std::int64_t* places,
           std::int64_t n) const {
    bool inside = true;
    for (std::int64_t i = 0; i < n; ++i) {
      std::int64_t v = values[i * stride];
      if (wraps && v < 0) v += index.limit;
      inside = inside && v >= 0 && v < index.limit;
      places[i] += v * index.step;
    }
    return inside;
  }
};

// Of the list of an index operator.
inline std::optional<sdk::Refusal> refuse_indices(const sdk::NodeView& node) {
  std::size_t present = 0;
  for (std::size_t i = 0; i < node.list_count(); ++i) {
    if (!node.has_operand(node.list_first() + i)) continue;
    ++present;
    if (!is_index(node.operand(node.list_first() + i).dtype()))
      return refusal(BP_REFUSED_DTYPE, "indices must be int64 or int32, not masks");
  }
  if (present == 0 || present > kMostIndices)
    return refusal(BP_REFUSED_SHAPE, "one to eight indices");
  return std::nullopt;
}

// to[i * stride] = from[places[i]], elements of `size` bytes.
inline void copy_from_places(std::int64_t size, std::byte* to, std::int64_t stride,
                             const std::byte* from, const std::int64_t* places, std::int64_t n) {
  with_size(size, [&](auto sample) {
    for (std::int64_t i = 0; i < n; ++i)
      std::memcpy(to + i * stride * static_cast<std::int64_t>(sizeof sample),
                  from + places[i] * static_cast<std::int64_t>(sizeof sample), sizeof sample);
  });
}

}  // namespace backplane::onednn
