#include "core/ir/view.h"

#include <algorithm>

namespace backplane::ir {

std::int64_t resolve(Dim dim, std::span<const std::int64_t> class_values) {
  return dim.is_class() ? class_values[dim.class_index()] : dim.number();
}

std::vector<std::int64_t> resolve(std::span<const Dim> dims,
                                  std::span<const std::int64_t> class_values) {
  std::vector<std::int64_t> out;
  out.reserve(dims.size());
  for (const Dim d : dims) out.push_back(resolve(d, class_values));
  return out;
}

std::vector<std::int64_t> hint_values(const Graph& graph) {
  std::vector<std::int64_t> out;
  out.reserve(graph.dim_classes.size());
  for (const DimClass& c : graph.dim_classes) out.push_back(c.hint);
  return out;
}

std::int64_t span_bytes(DType dtype, std::span<const std::int64_t> dims,
                        std::span<const std::int64_t> strides) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0) return 0;
    last += (dims[i] - 1) * strides[i];
  }
  return (last + 1) * dtype_bytes(dtype);
}

namespace {

bool is_view(const Graph& graph, ValueId value) {
  const Value& v = graph.values[value];
  if (v.kind != ValueKind::kResult || v.producer == kNone) return false;
  const Node& node = graph.nodes[v.producer];
  return node.op->op_class == OpClass::kView && !node.operands.empty() && node.operands[0] != kNone;
}

struct AttributeReader {
  const Node& node;
  std::span<const std::int64_t> classes;

  std::int64_t integer(std::string_view name, std::int64_t fallback) const {
    const Attribute* a = node.find_attribute(name);
    const Dim* d = a ? std::get_if<Dim>(&a->value) : nullptr;
    return d ? resolve(*d, classes) : fallback;
  }
  std::size_t dim(std::string_view name, std::int64_t fallback, std::size_t rank) const {
    const std::int64_t d = integer(name, fallback);
    return static_cast<std::size_t>(d < 0 ? d + static_cast<std::int64_t>(rank) : d);
  }
};

// Elements from operand 0's start to the result's start.
std::int64_t step_offset(const Graph& graph, ValueId value, std::span<const std::int64_t> classes) {
  const Node& node = graph.nodes[graph.values[value].producer];
  const TensorType& in = graph.values[node.operands[0]].type;
  const std::size_t rank = in.rank();
  const AttributeReader read{node, classes};
  const std::string_view op = node.op->name;
  auto stride = [&](std::size_t d) { return resolve(in.strides[d], classes); };
  const auto which = static_cast<std::int64_t>(graph.values[value].result_index);
  if (op == "aten.slice.Tensor") {
    const std::size_t d = read.dim("dim", 0, rank);
    const std::int64_t size = resolve(in.dims[d], classes);
    std::int64_t start = read.integer("start", 0);
    if (start < 0) start += size;
    return std::clamp<std::int64_t>(start, 0, size) * stride(d);
  }
  if (op == "aten.select.int") {
    const std::size_t d = read.dim("dim", 0, rank);
    std::int64_t index = read.integer("index", 0);
    if (index < 0) index += resolve(in.dims[d], classes);
    return index * stride(d);
  }
  if (op == "aten.diagonal") {
    const std::int64_t offset = read.integer("offset", 0);
    return offset >= 0 ? offset * stride(read.dim("dim2", 1, rank))
                       : -offset * stride(read.dim("dim1", 0, rank));
  }
  if (op == "aten.unbind.int") return which * stride(read.dim("dim", 0, rank));
  if (op == "aten.split.Tensor")
    return which * read.integer("split_size", 1) * stride(read.dim("dim", 0, rank));
  if (op == "aten.split_with_sizes") {
    const Attribute* sizes = node.find_attribute("split_sizes");
    const auto* list = sizes ? std::get_if<std::vector<Dim>>(&sizes->value) : nullptr;
    std::int64_t start = 0;
    for (std::int64_t i = 0; list && i < which; ++i)
      start += resolve((*list)[static_cast<std::size_t>(i)], classes);
    return start * stride(read.dim("dim", 0, rank));
  }
  if (op == "aten.as_strided") return read.integer("storage_offset", 0);
  return 0;
}

}  // namespace

ValueId view_root(const Graph& graph, ValueId value) {
  while (is_view(graph, value)) value = graph.nodes[graph.values[value].producer].operands[0];
  return value;
}

std::int64_t view_offset_bytes(const Graph& graph, ValueId value,
                               std::span<const std::int64_t> class_values) {
  std::int64_t bytes = 0;
  while (is_view(graph, value)) {
    const ValueId in = graph.nodes[graph.values[value].producer].operands[0];
    bytes += step_offset(graph, value, class_values) * dtype_bytes(graph.values[in].type.dtype);
    value = in;
  }
  return bytes;
}

}  // namespace backplane::ir
