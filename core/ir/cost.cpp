#include "core/ir/cost.h"

#include <algorithm>

namespace backplane::ir {
namespace {

double element_count(const Graph& graph, const TensorType& type) {
  double count = 1;
  for (Dim dim : type.dims) count *= static_cast<double>(graph.hint_of(dim));
  return count;
}

const TensorType* operand_type(const Graph& graph, const Node& node, std::size_t index) {
  if (index >= node.operands.size() || node.operands[index] == kNone) return nullptr;
  return &graph.values[node.operands[index]].type;
}

double size_at(const Graph& graph, const TensorType* type, std::size_t from_end) {
  if (type == nullptr || type->rank() < from_end) return 1;
  return static_cast<double>(graph.hint_of(type->dims[type->rank() - from_end]));
}

double result_elements(const Graph& graph, const Node& node) {
  return node.results.empty() ? 0 : element_count(graph, graph.values[node.results[0]].type);
}

double largest_operand(const Graph& graph, const Node& node) {
  double largest = 0;
  for (ValueId operand : node.operands) {
    if (operand != kNone)
      largest = std::max(largest, element_count(graph, graph.values[operand].type));
  }
  return largest;
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The length that each result element sums over.
double contracted_length(const Graph& graph, const Node& node) {
  const std::string_view name = node.op->name;
  const bool has_addend = name.starts_with("aten.addmm") || name.starts_with("aten.baddbmm") ||
                          name.starts_with("aten.addbmm") || name.starts_with("aten.addmv") ||
                          name.starts_with("aten._addmm");
  const TensorType* left = operand_type(graph, node, has_addend ? 1 : 0);
  if (is_one_of(name, {"aten.addr", "aten.outer", "aten.kron"})) return 1;
  const double length = size_at(graph, left, 1);
  // addbmm also sums over the batch.
  if (name == "aten.addbmm") return length * size_at(graph, left, 3);
  return length;
}

bool bool_at(const Attribute* attribute, std::size_t index, bool otherwise) {
  if (attribute == nullptr) return otherwise;
  if (const bool* value = std::get_if<bool>(&attribute->value)) return *value;
  const auto* list = std::get_if<std::vector<bool>>(&attribute->value);
  return list != nullptr && index < list->size() ? (*list)[index] : otherwise;
}

double convolution_flops(const Graph& graph, const Node& node) {
  const bool is_backward = node.op->name.find("backward") != std::string_view::npos;
  const TensorType* image = operand_type(graph, node, is_backward ? 1 : 0);
  const TensorType* weight = operand_type(graph, node, is_backward ? 2 : 1);
  if (image == nullptr || weight == nullptr || weight->rank() == 0) {
    return node.op->flops_per_element * result_elements(graph, node);
  }
  double filter = 1;  // one filter: channels of a group times the kernel
  for (std::size_t d = 1; d < weight->rank(); ++d) {
    filter *= static_cast<double>(graph.hint_of(weight->dims[d]));
  }
  const bool transposed = bool_at(node.find_attribute("transposed"), 0,
                                  node.op->name.find("transpose") != std::string_view::npos);
  // Every element of the smaller image meets one filter.
  const double output = is_backward ? element_count(graph, *operand_type(graph, node, 0))
                                    : result_elements(graph, node);
  const double one =
      node.op->flops_per_element * (transposed ? element_count(graph, *image) : output) * filter;
  if (!is_backward) return one;
  const Attribute* mask = node.find_attribute("output_mask");
  return one * (static_cast<double>(bool_at(mask, 0, true)) +
                static_cast<double>(bool_at(mask, 1, true)));
}

// Scores and weighted sum: query elements times key length, twice.
double attention_flops(const Graph& graph, const Node& node) {
  const bool is_backward = node.op->name.find("backward") != std::string_view::npos;
  const TensorType* query = operand_type(graph, node, is_backward ? 1 : 0);
  const TensorType* key = operand_type(graph, node, is_backward ? 2 : 1);
  if (query == nullptr || key == nullptr) return 0;
  return node.op->flops_per_element * element_count(graph, *query) * size_at(graph, key, 2);
}

double window_size(const Graph& graph, const Node& node) {
  const Attribute* kernel = node.find_attribute("kernel_size");
  double size = 1;
  if (kernel != nullptr) {
    if (const auto* list = std::get_if<std::vector<Dim>>(&kernel->value)) {
      for (Dim dim : *list) size *= static_cast<double>(graph.hint_of(dim));
    }
  }
  return size;
}

double node_flops(const Graph& graph, const Node& node) {
  const double per_element = node.op->flops_per_element;
  switch (node.op->op_class) {
    case OpClass::kMatmul:
      return per_element * result_elements(graph, node) * contracted_length(graph, node);
    case OpClass::kConvolution:
      return convolution_flops(graph, node);
    case OpClass::kAttention:
      return attention_flops(graph, node);
    case OpClass::kPooling:
      return per_element * std::max(result_elements(graph, node) * window_size(graph, node),
                                    largest_operand(graph, node));
    case OpClass::kReduction:
    case OpClass::kNormalization:
      return per_element * largest_operand(graph, node);
    case OpClass::kView:
      return 0;
    default:
      return per_element * result_elements(graph, node);
  }
}

}  // namespace

Work node_work(const Graph& graph, NodeId id) {
  const Node& node = graph.nodes[id];
  Work work;
  work.flops = node_flops(graph, node);
  if (node.op->op_class == OpClass::kView) return work;
  for (ValueId result : node.results) work.written_bytes += graph.hint_bytes(result);

  std::int64_t indexed_bytes = 0;  // a lookup reads what it returns, not the whole table
  if (is_one_of(node.op->name, {"aten.embedding", "aten.index_select", "aten.gather",
                                "aten.index.Tensor", "aten._unsafe_index.Tensor", "aten.take"})) {
    indexed_bytes = work.written_bytes;
  }
  for (std::size_t i = 0; i < node.operands.size(); ++i) {
    const ValueId operand = node.operands[i];
    const auto earlier = node.operands.begin() + static_cast<std::ptrdiff_t>(i);
    if (operand == kNone || std::find(node.operands.begin(), earlier, operand) != earlier) continue;
    const std::int64_t bytes = graph.hint_bytes(operand);
    work.read_bytes += i == 0 && indexed_bytes > 0 ? std::min(bytes, indexed_bytes) : bytes;
  }
  // Only the shape of the operand matters: zeros_like, new_empty.
  if (node.op->op_class == OpClass::kFactory && !node.op->name.starts_with("aten.fill")) {
    work.read_bytes = 0;
  }
  return work;
}

}  // namespace backplane::ir
