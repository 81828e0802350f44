// Views as arithmetic: a chain of view ops seen as one offset into the memory of its root.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/ir/graph.h"

namespace backplane::ir {

// The values of the dim classes in one call, or their hints.
std::int64_t resolve(Dim dim, std::span<const std::int64_t> class_values);
std::vector<std::int64_t> resolve(std::span<const Dim> dims,
                                  std::span<const std::int64_t> class_values);
std::vector<std::int64_t> hint_values(const Graph& graph);

// Bytes from the first to past the last element; 0 for an empty tensor.
std::int64_t span_bytes(DType dtype, std::span<const std::int64_t> dims,
                        std::span<const std::int64_t> strides);

// The value whose memory `value` lies in: follows operand 0 of view ops. Itself when not a view.
ValueId view_root(const Graph& graph, ValueId value);
// Elements from the start of what `value` is a view of, its operand 0, to its own; 0 when it is
// none.
std::int64_t step_offset(const Graph& graph, ValueId value,
                         std::span<const std::int64_t> class_values);
// The same where it is equal in every call; null where it depends on a dim class.
std::optional<std::int64_t> constant_step_offset(const Graph& graph, ValueId value);
// Bytes from the start of view_root(value) to the start of `value`.
std::int64_t view_offset_bytes(const Graph& graph, ValueId value,
                               std::span<const std::int64_t> class_values);
// The same where it is equal in every call; null where it depends on a dim class.
std::optional<std::int64_t> constant_view_offset_bytes(const Graph& graph, ValueId value);
// Whether dims, strides or offset of `value` in its root depend on a dim class.
bool depends_on_classes(const Graph& graph, ValueId value);

}  // namespace backplane::ir
