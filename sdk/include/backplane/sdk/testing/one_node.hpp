// One node with its tensors: the graph of one kernel, and what it reads and writes.
#pragma once

#include <backplane/sdk/testing/numbers.hpp>
#include <backplane/sdk/testing/session.hpp>

#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace backplane::sdk::testing {

// Strides of [N, C, H, W] in channels-last memory.
inline Shape channels_last(const Shape& d) { return {d[1] * d[2] * d[3], 1, d[1] * d[3], d[1]}; }

class OneNode {
 public:
  explicit OneNode(std::string op) : op_(std::move(op)) {}

  // Values in row-major order, whatever the strides.
  OneNode& in(const Shape& dims, const Floats& values, const Shape& strides = {},
              bp_dtype dtype = kFloat32) {
    operand(dtype, dims, strides).set_values(values);
    return *this;
  }
  // Floats as they lie in memory.
  OneNode& memory(const Shape& dims, const Floats& memory, const Shape& strides) {
    operand(kFloat32, dims, strides).set_memory(memory);
    return *this;
  }
  OneNode& index(const Shape& dims, const std::vector<std::int64_t>& values) {
    operand(kInt64, dims, {}).set_memory(values);
    return *this;
  }
  OneNode& none() {
    operands_.push_back(BP_NONE);
    return *this;
  }
  OneNode& out(const Shape& dims, const Shape& strides = {}, bp_dtype dtype = kFloat32) {
    outputs_.emplace_back(dtype, dims, strides);
    results_.push_back(builder_.value(dtype, dims, strides));
    builder_.output(results_.back());
    return *this;
  }
  OneNode& number(const char* name, std::int64_t v) {
    builder_.integer(name, v);
    return *this;
  }
  OneNode& flag(const char* name, bool v) {
    builder_.boolean(name, v);
    return *this;
  }
  OneNode& real(const char* name, double v) {
    builder_.real(name, v);
    return *this;
  }
  OneNode& ints(const char* name, Shape v, bp_attribute_kind kind = BP_ATTRIBUTE_INTS) {
    builder_.integers(name, std::move(v), kind);
    return *this;
  }
  OneNode& mask(bool a, bool b, bool c) {
    return ints("output_mask", {a, b, c}, BP_ATTRIBUTE_BOOLS);
  }

  // Through a plugin's whole interface.
  void run(Session& session) {
    auto results = session.run(graph(), {inputs_.begin(), inputs_.end()});
    outputs_.assign(results.begin(), results.end());
  }
  // By other means: `runner(*this)` reads and writes at `addresses`.
  template <class Runner>
  void run(const Runner& runner) {
    runner(*this);
  }
  // The first result in row-major order, and so on.
  Floats result(std::size_t i) const { return outputs_[i].values(); }

  // For what runs one kernel without a device. No values come after.
  bp_graph graph() {
    if (!has_node_) builder_.node(op_, operands_, results_);
    has_node_ = true;
    return builder_.graph();
  }
  const std::string& op() const { return op_; }
  const std::vector<std::uint32_t>& operands() const { return operands_; }
  const std::vector<std::uint32_t>& results() const { return results_; }
  // By value, as the graph numbers them.
  std::vector<TensorSpec> specs() const {
    std::vector<TensorSpec> out(inputs_.size() + outputs_.size());
    std::size_t input = 0;
    for (const std::uint32_t v : operands_)
      if (v != BP_NONE) out[v] = inputs_[input++].spec();
    for (std::size_t i = 0; i < results_.size(); ++i) out[results_[i]] = outputs_[i].spec();
    return out;
  }
  // Memory of operands, null where absent, then of results.
  std::vector<std::byte*> addresses() {
    std::vector<std::byte*> out;
    std::size_t input = 0;
    for (const std::uint32_t v : operands_)
      out.push_back(v == BP_NONE ? nullptr : inputs_[input++].data());
    for (HostTensor& tensor : outputs_) out.push_back(tensor.data());
    return out;
  }

 private:
  HostTensor& operand(bp_dtype dtype, const Shape& dims, const Shape& strides) {
    operands_.push_back(builder_.input(dtype, dims, strides));
    return inputs_.emplace_back(dtype, dims, strides);
  }

  std::string op_;
  GraphBuilder builder_;
  std::vector<std::uint32_t> operands_, results_;
  std::deque<HostTensor> inputs_, outputs_;
  bool has_node_ = false;
};

}  // namespace backplane::sdk::testing
