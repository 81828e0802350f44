#include "core/runtime/plugin/graph_arrays.h"

#include <numeric>
#include <unordered_map>

#include "core/ir/view.h"

namespace backplane::runtime {

namespace {

bp_string view_of(std::string_view text) { return {text.data(), text.size()}; }

bp_dim to_bp_dim(ir::Dim dim) {
  return dim.is_class() ? -1 - static_cast<bp_dim>(dim.class_index()) : dim.number();
}

}  // namespace

bp_dtype to_bp_dtype(ir::DType dtype) {
  using ir::DType;
  const auto make = [&](int code) {
    return bp_dtype{static_cast<std::uint8_t>(code),
                    static_cast<std::uint8_t>(ir::dtype_bytes(dtype) * 8), 1};
  };
  switch (dtype) {
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      return make(BP_DTYPE_FLOAT);
    case DType::kBFloat16:
      return make(BP_DTYPE_BFLOAT);
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
      return make(BP_DTYPE_INT);
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return make(BP_DTYPE_UINT);
    case DType::kBool:
      return make(BP_DTYPE_BOOL);
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128:
      return make(BP_DTYPE_COMPLEX);
  }
  return make(BP_DTYPE_OPAQUE);
}

GraphArrays::GraphArrays(const ir::Graph& graph) {
  std::vector<ir::NodeId> all(graph.nodes.size());
  std::iota(all.begin(), all.end(), 0U);
  build(graph, all, graph.inputs, graph.outputs);
}

GraphArrays::GraphArrays(const ir::Graph& graph, std::span<const ir::NodeId> nodes,
                         std::span<const ir::ValueId> inputs,
                         std::span<const ir::ValueId> outputs) {
  build(graph, nodes, inputs, outputs);
}

std::uint32_t GraphArrays::value_index(const ir::Graph& graph, ir::ValueId id) {
  if (id == ir::kNone) return BP_NONE;
  if (index_of_value_[id] != BP_NONE) return index_of_value_[id];
  const auto index = static_cast<std::uint32_t>(store_.values.size());
  index_of_value_[id] = index;
  const ir::Value& in = graph.values[id];
  bp_value out{};
  out.id = id;
  out.rank = static_cast<std::uint32_t>(in.type.rank());
  out.dtype = to_bp_dtype(in.type.dtype);
  out.first_dim = static_cast<std::uint32_t>(store_.dims.size());
  out.producer = out.alias_of = BP_NONE;
  out.layout.kind = BP_LAYOUT_STRIDED;
  if (in.is_static) out.flags |= BP_VALUE_STATIC;
  if (in.is_host_scalar) out.flags |= BP_VALUE_HOST_SCALAR;
  if (in.kind == ir::ValueKind::kConstant && in.constant) {
    out.flags |= BP_VALUE_CONSTANT;
    out.data = in.constant->bytes.data();
    out.data_bytes = in.constant->bytes.size();
  }
  for (const ir::Dim d : in.type.dims) store_.dims.push_back(to_bp_dim(d));
  for (const ir::Dim d : in.type.strides) store_.strides.push_back(to_bp_dim(d));
  store_.values.push_back(out);
  return index;
}

bp_dim GraphArrays::alias_offset(const ir::Graph& graph, ir::ValueId view) {
  const auto elements = ir::constant_step_offset(graph, view);
  if (elements && *elements >= 0) return *elements;
  offsets_.push_back(view);
  return -1 - static_cast<bp_dim>(graph.dim_classes.size() + offsets_.size() - 1);
}

std::vector<std::int64_t> class_values_of(const ir::Graph& graph,
                                          std::span<const ir::ValueId> offsets,
                                          std::span<const std::int64_t> values) {
  std::vector<std::int64_t> out(values.begin(), values.end());
  for (const ir::ValueId view : offsets) out.push_back(ir::step_offset(graph, view, values));
  return out;
}

bp_attribute GraphArrays::attribute(const ir::Attribute& in) {
  bp_attribute out{};
  out.name = view_of(in.name);
  struct Visitor {
    GraphArrays& self;
    bp_attribute& out;
    void operator()(std::monostate) const { out.kind = BP_ATTRIBUTE_NONE; }
    void operator()(bool value) const {
      out.kind = BP_ATTRIBUTE_BOOL;
      out.integer = value ? 1 : 0;
    }
    void operator()(ir::Dim value) const {
      out.kind = BP_ATTRIBUTE_INT;
      out.integer = to_bp_dim(value);
      out.is_class = value.is_class() ? 1 : 0;
    }
    void operator()(double value) const {
      out.kind = BP_ATTRIBUTE_FLOAT;
      out.real = value;
    }
    void operator()(const std::string& value) const {
      out.kind = BP_ATTRIBUTE_STRING;
      out.text = view_of(value);
    }
    void operator()(ir::DType value) const {
      out.kind = BP_ATTRIBUTE_DTYPE;
      out.dtype = to_bp_dtype(value);
    }
    void operator()(const std::vector<ir::Dim>& value) const {
      out.kind = BP_ATTRIBUTE_INTS;
      auto& integers = self.store_.integers.emplace_back();
      auto& flags = self.store_.flags.emplace_back();
      for (const ir::Dim d : value) {
        integers.push_back(to_bp_dim(d));
        flags.push_back(d.is_class() ? 1 : 0);
      }
      out.integers = integers.data();
      out.class_flags = flags.data();
      out.count = value.size();
    }
    void operator()(const std::vector<double>& value) const {
      out.kind = BP_ATTRIBUTE_FLOATS;
      out.reals = value.data();
      out.count = value.size();
    }
    void operator()(const std::vector<bool>& value) const {
      out.kind = BP_ATTRIBUTE_BOOLS;
      auto& integers = self.store_.integers.emplace_back();
      for (const bool b : value) integers.push_back(b ? 1 : 0);
      out.integers = integers.data();
      out.count = value.size();
    }
  };
  std::visit(Visitor{*this, out}, in.value);
  return out;
}

void GraphArrays::build(const ir::Graph& graph, std::span<const ir::NodeId> nodes,
                        std::span<const ir::ValueId> inputs, std::span<const ir::ValueId> outputs) {
  index_of_value_.assign(graph.values.size(), BP_NONE);
  for (const ir::ValueId v : inputs) store_.inputs.push_back(value_index(graph, v));
  std::unordered_map<const ir::OpInfo*, std::uint32_t> op_index;
  for (const ir::NodeId id : nodes) {
    const ir::Node& in = graph.nodes[id];
    bp_node out{};
    out.id = id;
    const auto [found, is_new] =
        op_index.emplace(in.op, static_cast<std::uint32_t>(op_index.size()));
    if (is_new) store_.ops.push_back({view_of(in.op->name), in.op->version, 0});
    out.op = found->second;
    out.first_operand = static_cast<std::uint32_t>(store_.indices.size());
    out.operand_count = static_cast<std::uint32_t>(in.operands.size());
    for (const ir::ValueId v : in.operands) store_.indices.push_back(value_index(graph, v));
    out.list_first = in.list_first;
    out.list_count = in.list_count;
    out.first_result = static_cast<std::uint32_t>(store_.indices.size());
    out.result_count = static_cast<std::uint32_t>(in.results.size());
    const bool is_view = in.op->op_class == ir::OpClass::kView && !in.operands.empty();
    for (const ir::ValueId v : in.results) {
      const std::uint32_t index = value_index(graph, v);
      store_.indices.push_back(index);
      if (index == BP_NONE) continue;
      store_.values[index].producer = static_cast<std::uint32_t>(store_.nodes.size());
      if (!is_view) continue;
      const std::uint32_t root = value_index(graph, in.operands[0]);
      store_.values[index].alias_of = root;
      store_.values[index].alias_offset = alias_offset(graph, v);
    }
    out.first_attribute = static_cast<std::uint32_t>(store_.attributes.size());
    out.attribute_count = static_cast<std::uint32_t>(in.attributes.size());
    for (const ir::Attribute& a : in.attributes) store_.attributes.push_back(attribute(a));
    if (in.op->op_class == ir::OpClass::kRandom) out.effects |= BP_EFFECT_RANDOM;
    if (in.op->mutates) out.effects |= BP_EFFECT_MUTATES;
    out.location = view_of(in.location);
    store_.nodes.push_back(out);
  }
  for (const ir::ValueId v : outputs) store_.outputs.push_back(value_index(graph, v));
  for (const ir::DimClass& c : graph.dim_classes)
    store_.dim_classes.push_back(
        {c.min, c.max, c.divisor, c.hint, view_of(c.name), view_of(c.expression)});
  const std::vector<std::int64_t> hints = ir::hint_values(graph);
  for (const ir::ValueId view : offsets_)
    store_.dim_classes.push_back(
        {INT64_MIN, INT64_MAX, 1, ir::step_offset(graph, view, hints), {}, {}});

  view_ = store_.view();
  view_.name = view_of(graph.name);
}

std::string GraphArrays::summary() const {
  constexpr std::size_t kNamed = 3;
  std::string out;
  for (std::size_t i = 0; i < std::min(kNamed, store_.nodes.size()); ++i) {
    const bp_string& name = store_.ops[store_.nodes[i].op].name;
    out += (i == 0 ? "" : ", ") + std::string(name.data, name.size);
  }
  if (store_.nodes.size() > kNamed)
    out += " and " + std::to_string(store_.nodes.size() - kNamed) + " more";
  return out;
}

}  // namespace backplane::runtime
