// Reading the graph: views over the borrowed arrays, and a copy that a plugin may keep.
#pragma once

#include <backplane/sdk/core.hpp>

#include <cassert>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// Beside the type, where every namespace finds it.
inline bool operator==(bp_dtype a, bp_dtype b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

namespace backplane::sdk {

inline constexpr bp_dtype kFloat32{BP_DTYPE_FLOAT, 32, 1}, kFloat64{BP_DTYPE_FLOAT, 64, 1},
    kFloat16{BP_DTYPE_FLOAT, 16, 1}, kBFloat16{BP_DTYPE_BFLOAT, 16, 1}, kInt64{BP_DTYPE_INT, 64, 1},
    kInt32{BP_DTYPE_INT, 32, 1}, kInt16{BP_DTYPE_INT, 16, 1}, kInt8{BP_DTYPE_INT, 8, 1},
    kUInt8{BP_DTYPE_UINT, 8, 1}, kUInt16{BP_DTYPE_UINT, 16, 1}, kUInt32{BP_DTYPE_UINT, 32, 1},
    kUInt64{BP_DTYPE_UINT, 64, 1}, kBool{BP_DTYPE_BOOL, 8, 1}, kComplex64{BP_DTYPE_COMPLEX, 64, 1},
    kComplex128{BP_DTYPE_COMPLEX, 128, 1};
inline std::int64_t element_bytes(bp_dtype dtype) { return (dtype.bits * dtype.lanes + 7) / 8; }

class ValueView {
 public:
  ValueView(const bp_graph& graph, std::uint32_t index)
      : graph_(&graph), value_(bp_graph_value(&graph, index)), index_(index) {}
  std::uint32_t index() const { return index_; }
  bp_dtype dtype() const { return value_->dtype; }
  std::size_t rank() const { return value_->rank; }
  std::span<const bp_dim> dims() const { return {graph_->dims + value_->first_dim, value_->rank}; }
  std::span<const bp_dim> strides() const {
    return {graph_->strides + value_->first_dim, value_->rank};
  }
  bool has(std::uint64_t flag) const { return (value_->flags & flag) != 0; }
  const bp_value& raw() const { return *value_; }
  // The value that this one is a view of, BP_NONE where it is none; it starts alias_offset()
  // elements behind the start of that one.
  std::uint32_t alias_of() const { return value_->alias_of; }
  bp_dim alias_offset() const { return value_->alias_offset; }
  // The dims at the classes' hints.
  std::vector<std::int64_t> hint_dims() const {
    std::vector<std::int64_t> out;
    for (bp_dim d : dims())
      out.push_back(d >= 0 ? d
                           : bp_graph_dim_class(graph_, static_cast<std::size_t>(-1 - d))->hint);
    return out;
  }
  std::int64_t hint_elements() const {
    std::int64_t n = 1;
    for (std::int64_t d : hint_dims()) n *= d;
    return n;
  }

 private:
  const bp_graph* graph_;
  const bp_value* value_;
  std::uint32_t index_;
};

// A number that follows from sizes was asked for where they are not known: a claim refuses the
// node, a compile fails.
class UnknownNumber : public std::runtime_error {
 public:
  explicit UnknownNumber(const std::string& attribute)
      : std::runtime_error("'" + attribute + "' differs with the sizes") {}
};

class NodeView {
 public:
  NodeView(const bp_graph& graph, std::size_t index)
      : graph_(&graph), node_(bp_graph_node(&graph, index)), index_(index) {}
  std::size_t index() const { return index_; }
  std::uint32_t id() const { return node_->id; }
  std::string_view op() const { return view(bp_graph_op(graph_, node_->op)->name); }
  std::uint32_t op_version() const { return bp_graph_op(graph_, node_->op)->version; }
  std::uint32_t op_index() const { return node_->op; }
  std::string_view location() const { return view(node_->location); }
  const bp_node& raw() const { return *node_; }

  std::size_t operand_count() const { return node_->operand_count; }
  // Value index, BP_NONE where the optional operand is absent.
  std::uint32_t operand_index(std::size_t i) const {
    return graph_->indices[node_->first_operand + i];
  }
  bool has_operand(std::size_t i) const {
    return i < node_->operand_count && operand_index(i) != BP_NONE;
  }
  ValueView value(std::uint32_t index) const { return {*graph_, index}; }
  ValueView operand(std::size_t i) const { return {*graph_, operand_index(i)}; }
  std::size_t result_count() const { return node_->result_count; }
  std::uint32_t result_index(std::size_t i = 0) const {
    return graph_->indices[node_->first_result + i];
  }
  ValueView result(std::size_t i = 0) const { return {*graph_, result_index(i)}; }
  // Whether its results are other views of operand 0's memory: nothing is to be done for it.
  bool is_view() const {
    for (std::size_t i = 0; i < result_count(); ++i)
      if (result_index(i) != BP_NONE) return result(i).alias_of() != BP_NONE;
    return false;
  }
  // Whether it shows a matrix turned, and nothing else.
  bool turns_matrix() const {
    if (!is_view() || result_index() == BP_NONE) return false;
    const ValueView from = operand(0), to = result();
    return from.rank() == 2 && to.rank() == 2 && to.alias_offset() == 0 &&
           from.dims()[0] == to.dims()[1] && from.dims()[1] == to.dims()[0] &&
           from.strides()[0] == to.strides()[1] && from.strides()[1] == to.strides()[0];
  }
  std::size_t list_first() const { return node_->list_first; }
  std::size_t list_count() const { return node_->list_count; }

  std::size_t attribute_count() const { return node_->attribute_count; }
  const bp_attribute& raw_attribute(std::size_t i) const {
    return *bp_graph_attribute(graph_, node_->first_attribute + i);
  }
  // Attributes by the schema's name; null (or the fallback) when absent or None.
  const bp_attribute* attribute(std::string_view name) const {
    for (std::uint32_t i = 0; i < node_->attribute_count; ++i) {
      const bp_attribute* a = bp_graph_attribute(graph_, node_->first_attribute + i);
      if (view(a->name) == name) return a->kind == BP_ATTRIBUTE_NONE ? nullptr : a;
    }
    return nullptr;
  }
  // A number that may be a dim class: resolve with Dims.
  bp_dim dim_or(std::string_view name, bp_dim fallback) const {
    const bp_attribute* a = attribute(name);
    return a ? a->integer : fallback;
  }
  bool is_dim_class(std::string_view name) const {
    const bp_attribute* a = attribute(name);
    return a && a->kind == BP_ATTRIBUTE_INT && a->is_class != 0;
  }
  // Numbers. One that follows from sizes is known at known sizes only: see at().
  std::int64_t int_or(std::string_view name, std::int64_t fallback) const {
    const bp_attribute* a = attribute(name);
    if (!a) return fallback;
    return a->kind == BP_ATTRIBUTE_FLOAT ? static_cast<std::int64_t>(a->real) : integer_of(*a);
  }
  double real_or(std::string_view name, double fallback) const {
    const bp_attribute* a = attribute(name);
    if (!a) return fallback;
    return a->kind == BP_ATTRIBUTE_FLOAT ? a->real : static_cast<double>(integer_of(*a));
  }
  bool bool_or(std::string_view name, bool fallback) const {
    const bp_attribute* a = attribute(name);
    return a ? a->integer != 0 : fallback;
  }
  std::string_view text_or(std::string_view name, std::string_view fallback) const {
    const bp_attribute* a = attribute(name);
    return a ? view(a->text) : fallback;
  }
  // The node where its graph's dim classes have these values, which must outlive it.
  NodeView at(std::span<const std::int64_t> class_values) const {
    NodeView resolved = *this;
    resolved.class_values_ = class_values;
    return resolved;
  }

 private:
  std::int64_t integer_of(const bp_attribute& a) const {
    if (a.kind != BP_ATTRIBUTE_INT || a.is_class == 0) return a.integer;
    const auto index = static_cast<std::size_t>(-1 - a.integer);
    if (index >= class_values_.size()) throw UnknownNumber(std::string(view(a.name)));
    return class_values_[index];
  }

  std::span<const std::int64_t> class_values_;
  const bp_graph* graph_;
  const bp_node* node_;
  std::size_t index_;
};

class GraphView {
 public:
  explicit GraphView(const bp_graph& graph) : graph_(&graph) {}
  std::size_t size() const { return graph_->node_count; }
  NodeView operator[](std::size_t i) const { return {*graph_, i}; }
  ValueView value(std::uint32_t i) const { return {*graph_, i}; }
  std::size_t value_count() const { return graph_->value_count; }
  std::span<const std::uint32_t> inputs() const { return {graph_->inputs, graph_->input_count}; }
  std::span<const std::uint32_t> outputs() const { return {graph_->outputs, graph_->output_count}; }
  std::size_t dim_class_count() const { return graph_->dim_class_count; }
  const bp_graph& raw() const { return *graph_; }

 private:
  const bp_graph* graph_;
};
using Subgraph = GraphView;

// The values of the dim classes in one call.
class Dims {
 public:
  explicit Dims(std::span<const std::int64_t> values) : values_(values) {}
  std::int64_t operator()(bp_dim dim) const {
    return dim >= 0 ? dim : values_[static_cast<std::size_t>(-1 - dim)];
  }
  std::vector<std::int64_t> operator()(std::span<const bp_dim> dims) const {
    std::vector<std::int64_t> out;
    out.reserve(dims.size());
    for (bp_dim d : dims) out.push_back((*this)(d));
    return out;
  }
  // An integer attribute: a plain number (may be negative) or a dim class.
  std::int64_t attribute(const NodeView& node, std::string_view name, std::int64_t fallback) const {
    const bp_attribute* a = node.attribute(name);
    if (!a) return fallback;
    return a->is_class ? (*this)(a->integer) : a->integer;
  }
  // An integer list attribute; empty when absent or None. Elements are plain or classes alike.
  std::vector<std::int64_t> list(const NodeView& node, std::string_view name) const {
    std::vector<std::int64_t> out;
    if (const bp_attribute* a = node.attribute(name)) {
      for (std::size_t i = 0; i < a->count; ++i) {
        const bool is_class = a->class_flags && a->class_flags[i] != 0;
        out.push_back(is_class ? (*this)(a->integers[i]) : a->integers[i]);
      }
    }
    return out;
  }
  std::span<const std::int64_t> values() const { return values_; }

 private:
  std::span<const std::int64_t> values_;
};

// A deep copy of a graph, to keep in an executable: the host's arrays are borrowed.
class OwnedGraph {
 public:
  explicit OwnedGraph(const bp_graph& source) : graph_(read(&source)) {
    copy(graph_.nodes, source.node_count, source.node_stride, nodes_, graph_.node_stride);
    copy(graph_.values, source.value_count, source.value_stride, values_, graph_.value_stride);
    copy(graph_.attributes, source.attribute_count, source.attribute_stride, attributes_,
         graph_.attribute_stride);
    copy(graph_.ops, source.op_count, source.op_stride, ops_, graph_.op_stride);
    copy(graph_.dim_classes, source.dim_class_count, source.dim_class_stride, classes_,
         graph_.dim_class_stride);
    copy_plain(graph_.indices, source.index_count, indices_);
    copy_plain(graph_.dims, source.dim_count, dims_);
    copy_plain(graph_.strides, source.dim_count, strides_);
    copy_plain(graph_.inputs, source.input_count, inputs_);
    copy_plain(graph_.outputs, source.output_count, outputs_);
    keep(graph_.name);
    for (auto& n : nodes_) keep(n.location);
    for (auto& o : ops_) keep(o.name);
    for (auto& c : classes_) keep(c.name), keep(c.expression);
    for (auto& v : values_)
      if (v.data) v.data = keep_bytes(v.data, v.data_bytes);
    for (auto& a : attributes_) {
      keep(a.name);
      keep(a.text);
      if (a.integers)
        a.integers = static_cast<const std::int64_t*>(keep_bytes(a.integers, a.count * 8));
      if (a.class_flags)
        a.class_flags = static_cast<const std::uint8_t*>(keep_bytes(a.class_flags, a.count));
      if (a.reals) a.reals = static_cast<const double*>(keep_bytes(a.reals, a.count * 8));
    }
  }
  OwnedGraph(const OwnedGraph&) = delete;
  OwnedGraph& operator=(const OwnedGraph&) = delete;

  GraphView view() const { return GraphView(graph_); }

 private:
  template <class T>
  static void copy(const T*& field, std::size_t count, std::size_t stride, std::vector<T>& store,
                   std::size_t& out_stride) {
    store.resize(count);
    const std::size_t bytes = std::min(stride, sizeof(T));
    for (std::size_t i = 0; i < count; ++i) {
      std::memset(&store[i], 0, sizeof(T));
      std::memcpy(&store[i], bp_at(field, stride, i), bytes);
    }
    field = store.data();
    out_stride = sizeof(T);
  }
  template <class T>
  static void copy_plain(const T*& field, std::size_t count, std::vector<T>& store) {
    if (count) store.assign(field, field + count);
    field = store.data();
  }
  const void* keep_bytes(const void* data, std::size_t bytes) {
    auto& block = blocks_.emplace_back(new std::max_align_t[bytes / sizeof(std::max_align_t) + 1]);
    std::memcpy(block.get(), data, bytes);
    return block.get();
  }
  void keep(bp_string& text) {
    if (text.size) text.data = static_cast<const char*>(keep_bytes(text.data, text.size));
  }

  bp_graph graph_;
  std::vector<bp_node> nodes_;
  std::vector<bp_value> values_;
  std::vector<bp_attribute> attributes_;
  std::vector<bp_op> ops_;
  std::vector<bp_dim_class> classes_;
  std::vector<std::uint32_t> indices_, inputs_, outputs_;
  std::vector<bp_dim> dims_, strides_;
  std::vector<std::unique_ptr<std::max_align_t[]>> blocks_;
};

}  // namespace backplane::sdk
