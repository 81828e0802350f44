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
  bool& depends;  // set when a dim class is read

  std::int64_t number(Dim dim) const {
    depends = depends || dim.is_class();
    return resolve(dim, classes);
  }
  std::int64_t integer(std::string_view name, std::int64_t fallback) const {
    const Attribute* a = node.find_attribute(name);
    const Dim* d = a ? std::get_if<Dim>(&a->value) : nullptr;
    return d ? number(*d) : fallback;
  }
  std::size_t dim(std::string_view name, std::int64_t fallback, std::size_t rank) const {
    const std::int64_t d = integer(name, fallback);
    return static_cast<std::size_t>(d < 0 ? d + static_cast<std::int64_t>(rank) : d);
  }
};

std::int64_t step_offset(const Graph& graph, ValueId value, std::span<const std::int64_t> classes,
                         bool& depends) {
  const Node& node = graph.nodes[graph.values[value].producer];
  const TensorType& in = graph.values[node.operands[0]].type;
  const std::size_t rank = in.rank();
  const AttributeReader read{node, classes, depends};
  const std::string_view op = node.op->name;
  // Nothing times a stride is nothing, whatever the stride depends on.
  const auto strides = [&](std::int64_t count, std::size_t d) {
    return count == 0 ? 0 : count * read.number(in.strides[d]);
  };
  const auto which = static_cast<std::int64_t>(graph.values[value].result_index);
  if (op == "aten.slice.Tensor") {
    const std::size_t d = read.dim("dim", 0, rank);
    std::int64_t start = read.integer("start", 0);
    if (start < 0) start += read.number(in.dims[d]);
    // Beyond the end the result is empty and its offset means nothing.
    return strides(std::clamp<std::int64_t>(start, 0, resolve(in.dims[d], classes)), d);
  }
  if (op == "aten.select.int") {
    const std::size_t d = read.dim("dim", 0, rank);
    std::int64_t index = read.integer("index", 0);
    if (index < 0) index += read.number(in.dims[d]);
    return strides(index, d);
  }
  if (op == "aten.diagonal") {
    const std::int64_t offset = read.integer("offset", 0);
    return offset >= 0 ? strides(offset, read.dim("dim2", 1, rank))
                       : strides(-offset, read.dim("dim1", 0, rank));
  }
  if (op == "aten.unbind.int") return strides(which, read.dim("dim", 0, rank));
  if (op == "aten.split.Tensor")
    return which == 0 ? 0
                      : strides(which * read.integer("split_size", 1), read.dim("dim", 0, rank));
  if (op == "aten.split_with_sizes") {
    const Attribute* sizes = node.find_attribute("split_sizes");
    const auto* list = sizes ? std::get_if<std::vector<Dim>>(&sizes->value) : nullptr;
    std::int64_t start = 0;
    for (std::int64_t i = 0; list && i < which; ++i)
      start += read.number((*list)[static_cast<std::size_t>(i)]);
    return strides(start, read.dim("dim", 0, rank));
  }
  if (op == "aten.as_strided") return read.integer("storage_offset", 0);
  return 0;
}

std::int64_t offset_bytes(const Graph& graph, ValueId value, std::span<const std::int64_t> classes,
                          bool& depends) {
  std::int64_t bytes = 0;
  while (is_view(graph, value)) {
    const ValueId in = graph.nodes[graph.values[value].producer].operands[0];
    bytes += step_offset(graph, value, classes, depends) * dtype_bytes(graph.values[in].type.dtype);
    value = in;
  }
  return bytes;
}

}  // namespace

ValueId view_root(const Graph& graph, ValueId value) {
  while (is_view(graph, value)) value = graph.nodes[graph.values[value].producer].operands[0];
  return value;
}

std::int64_t step_offset(const Graph& graph, ValueId value,
                         std::span<const std::int64_t> class_values) {
  bool depends = false;
  return is_view(graph, value) ? step_offset(graph, value, class_values, depends) : 0;
}

std::optional<std::int64_t> constant_step_offset(const Graph& graph, ValueId value) {
  if (!is_view(graph, value)) return 0;
  bool depends = false;
  const std::int64_t elements = step_offset(graph, value, hint_values(graph), depends);
  if (depends) return std::nullopt;
  return elements;
}

std::int64_t view_offset_bytes(const Graph& graph, ValueId value,
                               std::span<const std::int64_t> class_values) {
  bool depends = false;
  return offset_bytes(graph, value, class_values, depends);
}

std::optional<std::int64_t> constant_view_offset_bytes(const Graph& graph, ValueId value) {
  bool depends = false;
  const std::int64_t bytes = offset_bytes(graph, value, hint_values(graph), depends);
  if (depends) return std::nullopt;
  return bytes;
}

bool depends_on_classes(const Graph& graph, ValueId value) {
  const auto is_class = [](Dim dim) { return dim.is_class(); };
  const TensorType& type = graph.values[value].type;
  return std::ranges::any_of(type.dims, is_class) || std::ranges::any_of(type.strides, is_class) ||
         !constant_view_offset_bytes(graph, value);
}

}  // namespace backplane::ir
