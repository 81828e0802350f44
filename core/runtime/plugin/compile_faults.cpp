#include "core/runtime/plugin/compile_faults.h"

#include "core/ir/text.h"

namespace backplane::runtime {

namespace {

constexpr std::size_t kBrokenOfABrokenKind = 2;

template <class Text>
std::string signature(const ir::Graph& graph, ir::NodeId id, Text&& text_of_type) {
  const ir::Node& node = graph.nodes[id];
  std::string text(node.op->name);
  for (const auto* values : {&node.operands, &node.results}) {
    text += ";";
    for (const ir::ValueId v : *values)
      text += " " + (v == ir::kNone ? std::string("none") : text_of_type(graph.values[v].type));
  }
  return text;
}

std::string kind_of(const ir::Graph& graph, ir::NodeId node) {
  return signature(graph, node, [](const ir::TensorType& type) {
    return std::string(ir::dtype_name(type.dtype));
  });
}

std::string member_of(const ir::Graph& graph, ir::NodeId node) {
  return signature(graph, node,
                   [&](const ir::TensorType& type) { return ir::print_type(graph, type); }) +
         "; " + ir::print_attributes(graph, node);
}

}  // namespace

void CompileFaults::add(const ir::Graph& graph, ir::NodeId node, const Status& status) {
  std::string kind = kind_of(graph, node), member = member_of(graph, node);
  const std::lock_guard lock(mutex_);
  Kind& known = by_kind_[std::move(kind)];
  const bool is_new = known.members.insert(std::move(member)).second;
  if (is_new && status.code() != Code::kUnsupported) ++known.broken;
  if (known.text.empty())
    known.text = "compile failed over " + std::string(graph.nodes[node].op->name) + " (node " +
                 std::to_string(node) + " of " + graph.name + "): " + status.message();
}

std::string CompileFaults::find(const ir::Graph& graph, ir::NodeId node) const {
  const std::string kind = kind_of(graph, node);
  const std::lock_guard lock(mutex_);
  const auto found = by_kind_.find(kind);
  if (found == by_kind_.end()) return {};
  const Kind& known = found->second;
  const bool is_known =
      known.broken >= kBrokenOfABrokenKind || known.members.contains(member_of(graph, node));
  return is_known ? known.text : std::string();
}

bool CompileFaults::is_empty() const {
  const std::lock_guard lock(mutex_);
  return by_kind_.empty();
}

void CompileFaults::clear() {
  const std::lock_guard lock(mutex_);
  by_kind_.clear();
}

}  // namespace backplane::runtime
