// A bp_graph written by hand: its arrays, grown value by value and node by node.
#pragma once

#include <backplane/graph.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace backplane::sdk::testing {

class GraphBuilder {
 public:
  using Dims = std::vector<std::int64_t>;

  std::uint32_t value(bp_dtype dtype, Dims dims, Dims strides = {}, std::uint64_t flags = 0) {
    if (strides.empty() && !dims.empty()) {
      strides.assign(dims.size(), 1);
      for (std::size_t i = dims.size(); i-- > 1;)
        strides[i - 1] = strides[i] * (dims[i] > 0 ? dims[i] : 1);
    }
    bp_value v{};
    v.id = static_cast<std::uint32_t>(values_.size());
    v.rank = static_cast<std::uint32_t>(dims.size());
    v.flags = flags;
    v.dtype = dtype;
    v.first_dim = static_cast<std::uint32_t>(dims_.size());
    v.producer = v.alias_of = BP_NONE;
    v.layout.kind = BP_LAYOUT_STRIDED;
    dims_.insert(dims_.end(), dims.begin(), dims.end());
    strides_.insert(strides_.end(), strides.begin(), strides.end());
    values_.push_back(v);
    return v.id;
  }
  std::uint32_t input(bp_dtype dtype, Dims dims, Dims strides = {}, std::uint64_t flags = 0) {
    inputs_.push_back(value(dtype, std::move(dims), std::move(strides), flags));
    return inputs_.back();
  }
  // Known at compile time; `data` outlives the graph.
  std::uint32_t constant(bp_dtype dtype, Dims dims, const void* data, std::uint64_t bytes) {
    const std::uint32_t v = value(dtype, std::move(dims), {}, BP_VALUE_CONSTANT);
    values_[v].data = data;
    values_[v].data_bytes = bytes;
    return v;
  }
  std::uint32_t dim_class(std::int64_t min, std::int64_t max, std::int64_t hint) {
    classes_.push_back({min, max, 1, hint, text("s"), {nullptr, 0}});
    return static_cast<std::uint32_t>(classes_.size() - 1);
  }
  void output(std::uint32_t value) { outputs_.push_back(value); }

  // Attributes belong to the next node.
  bp_attribute& attribute(const std::string& name, bp_attribute_kind kind) {
    bp_attribute a{};
    a.name = text(name);
    a.kind = kind;
    attributes_.push_back(a);
    return attributes_.back();
  }
  void integer(const std::string& name, std::int64_t v) {
    attribute(name, BP_ATTRIBUTE_INT).integer = v;
  }
  void boolean(const std::string& name, bool v) { attribute(name, BP_ATTRIBUTE_BOOL).integer = v; }
  void real(const std::string& name, double v) { attribute(name, BP_ATTRIBUTE_FLOAT).real = v; }
  void string(const std::string& name, const std::string& v) {
    attribute(name, BP_ATTRIBUTE_STRING).text = text(v);
  }
  void integers(const std::string& name, Dims v, bp_attribute_kind kind = BP_ATTRIBUTE_INTS) {
    lists_.push_back(std::move(v));
    bp_attribute& a = attribute(name, kind);
    a.integers = lists_.back().data();
    a.count = lists_.back().size();
  }
  void reals(const std::string& name, std::vector<double> v) {
    reals_.push_back(std::move(v));
    bp_attribute& a = attribute(name, BP_ATTRIBUTE_FLOATS);
    a.reals = reals_.back().data();
    a.count = reals_.back().size();
  }

  void node(const std::string& op, const std::vector<std::uint32_t>& operands,
            const std::vector<std::uint32_t>& results, std::uint32_t list_first = 0,
            std::uint32_t list_count = 0) {
    bp_node n{};
    n.id = static_cast<std::uint32_t>(nodes_.size());
    n.op = static_cast<std::uint32_t>(ops_.size());
    ops_.push_back({text(op), 1, 0});
    n.first_operand = static_cast<std::uint32_t>(indices_.size());
    n.operand_count = static_cast<std::uint32_t>(operands.size());
    indices_.insert(indices_.end(), operands.begin(), operands.end());
    n.first_result = static_cast<std::uint32_t>(indices_.size());
    n.result_count = static_cast<std::uint32_t>(results.size());
    indices_.insert(indices_.end(), results.begin(), results.end());
    for (std::uint32_t r : results)
      if (r != BP_NONE) values_[r].producer = n.id;
    n.list_first = list_first;
    n.list_count = list_count;
    n.first_attribute = first_attribute_;
    n.attribute_count = static_cast<std::uint32_t>(attributes_.size()) - first_attribute_;
    first_attribute_ = static_cast<std::uint32_t>(attributes_.size());
    nodes_.push_back(n);
  }

  // A node whose result is a view of the operand, `offset` elements behind its start.
  void view(const std::string& op, std::uint32_t operand, std::uint32_t result,
            std::int64_t offset = 0) {
    node(op, {operand}, {result});
    values_[result].alias_of = operand;
    values_[result].alias_offset = offset;
  }

  bp_graph graph() const {
    bp_graph g{};
    g.struct_size = sizeof g;
    g.nodes = nodes_.data(), g.node_count = nodes_.size(), g.node_stride = sizeof(bp_node);
    g.values = values_.data(), g.value_count = values_.size(), g.value_stride = sizeof(bp_value);
    g.attributes = attributes_.data(), g.attribute_count = attributes_.size();
    g.attribute_stride = sizeof(bp_attribute);
    g.ops = ops_.data(), g.op_count = ops_.size(), g.op_stride = sizeof(bp_op);
    g.dim_classes = classes_.data(), g.dim_class_count = classes_.size();
    g.dim_class_stride = sizeof(bp_dim_class);
    g.indices = indices_.data(), g.index_count = indices_.size();
    g.dims = dims_.data(), g.strides = strides_.data(), g.dim_count = dims_.size();
    g.inputs = inputs_.data(), g.input_count = inputs_.size();
    g.outputs = outputs_.data(), g.output_count = outputs_.size();
    return g;
  }

 private:
  bp_string text(const std::string& s) {
    texts_.push_back(s);
    return {texts_.back().data(), texts_.back().size()};
  }
  std::vector<bp_node> nodes_;
  std::vector<bp_value> values_;
  std::vector<bp_attribute> attributes_;
  std::vector<bp_op> ops_;
  std::vector<bp_dim_class> classes_;
  std::vector<std::uint32_t> indices_, inputs_, outputs_;
  Dims dims_, strides_;
  std::deque<std::string> texts_;
  std::deque<Dims> lists_;
  std::deque<std::vector<double>> reals_;
  std::uint32_t first_attribute_ = 0;
};

}  // namespace backplane::sdk::testing
