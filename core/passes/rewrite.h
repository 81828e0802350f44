// What several passes ask about a graph before they rewrite it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "core/ir/graph.h"

namespace backplane::passes {

// A snapshot; stale once the graph changes, except where a pass updates it.
struct GraphFacts {
  explicit GraphFacts(const ir::Graph& graph);

  std::vector<bool> is_output;
  // Outputs and everything whose memory they show: two of these stay distinct tensors.
  std::vector<bool> is_shown;
  // Roots of memory that some node writes; a copy of it is no alias.
  std::vector<bool> is_written;
  std::vector<std::uint32_t> use_count;  // operands and outputs
};

// The node that computes `value` where its op has one of these names, else null.
const ir::Node* find_producer(const ir::Graph& graph, ir::ValueId value,
                              std::initializer_list<std::string_view> names);

// An attribute's integer, or `fallback` where it is absent; null where it is anything else.
std::optional<std::int64_t> find_integer(const ir::Node& node, std::string_view name,
                                         std::int64_t fallback);

// An attribute's list of integers; null where it is absent, anything else, or holds a dim class.
std::optional<std::vector<std::int64_t>> find_integers(const ir::Node& node, std::string_view name);

// Whether a factor such as alpha is 1 or absent.
bool is_one(const ir::Node& node, std::string_view name);

// For permute, t and transpose: result dim i is operand dim order[i].
std::optional<std::vector<std::size_t>> find_permutation(const ir::Graph& graph,
                                                         const ir::Node& node);

// The matrix whose transpose `value` is; kNone where it is none.
ir::ValueId find_transposed(const ir::Graph& graph, ir::ValueId value);

// Makes `node` another op in place; results, their names and types, and the location stay.
void become(ir::Node& node, std::string_view op, std::vector<ir::ValueId> operands,
            std::vector<ir::Attribute> attributes = {});

}  // namespace backplane::passes
