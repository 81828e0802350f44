// For tests of kernels: one node with its tensors, run without a host.
#pragma once

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/kernel_registry.h"
#include "kernels/rows/block.h"

namespace backplane::onednn::testing {

using Floats = std::vector<float>;

inline Floats random_floats(std::int64_t n, unsigned seed = 1) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  Floats out(static_cast<std::size_t>(n));
  for (float& v : out) v = values(generator);
  return out;
}
// Strides of [N, C, H, W] in channels-last memory.
inline Shape last(const Shape& d) { return {d[1] * d[2] * d[3], 1, d[1] * d[3], d[1]}; }

class OneNode {
 public:
  explicit OneNode(std::string op) : op_(std::move(op)) {}

  // Values in row-major order, whatever the strides.
  OneNode& in(const Shape& dims, const Floats& values, const Shape& strides = {},
              bp_dtype dtype = sdk::kFloat32) {
    const std::size_t at = add(dims, strides, dtype);
    place(at, values);
    operands_.push_back(static_cast<std::uint32_t>(at));
    return *this;
  }
  // Floats as they lie in memory.
  OneNode& memory(const Shape& dims, const Floats& memory, const Shape& strides) {
    const std::size_t at = add(dims, strides, sdk::kFloat32);
    memory_[at].resize(memory.size() * sizeof(float));
    std::memcpy(memory_[at].data(), memory.data(), memory_[at].size());
    operands_.push_back(static_cast<std::uint32_t>(at));
    return *this;
  }
  OneNode& index(const Shape& dims, const std::vector<std::int64_t>& values) {
    const std::size_t at = add(dims, {}, sdk::kInt64);
    std::memcpy(memory_[at].data(), values.data(), values.size() * 8);
    operands_.push_back(static_cast<std::uint32_t>(at));
    return *this;
  }
  OneNode& none() {
    operands_.push_back(BP_NONE);
    return *this;
  }
  OneNode& out(const Shape& dims, const Shape& strides = {}, bp_dtype dtype = sdk::kFloat32) {
    results_.push_back(static_cast<std::uint32_t>(add(dims, strides, dtype)));
    return *this;
  }
  OneNode& number(const char* name, std::int64_t v, bp_attribute_kind kind = BP_ATTRIBUTE_INT) {
    attribute(name, kind).integer = v;
    return *this;
  }
  OneNode& flag(const char* name, bool v) { return number(name, v ? 1 : 0, BP_ATTRIBUTE_BOOL); }
  OneNode& real(const char* name, double v) {
    attribute(name, BP_ATTRIBUTE_FLOAT).real = v;
    return *this;
  }
  OneNode& ints(const char* name, Shape v, bp_attribute_kind kind = BP_ATTRIBUTE_INTS) {
    lists_.push_back(std::move(v));
    bp_attribute& a = attribute(name, kind);
    a.integers = lists_.back().data();
    a.count = lists_.back().size();
    return *this;
  }
  OneNode& mask(bool a, bool b, bool c) {
    return ints("output_mask", {a, b, c}, BP_ATTRIBUTE_BOOLS);
  }

  void run() {
    const KernelRow* row = find_kernel(op_);
    if (row == nullptr) throw std::logic_error("no kernel for " + op_);
    if (row->refuse) {
      const bp_graph raw = make_graph();
      const auto refusal = row->refuse(sdk::GraphView(raw)[0]);
      if (refusal) throw std::logic_error(refusal->text);
    }
    run(row->make);
  }
  void run(MadeKernel (*make)(const sdk::StepContext& context)) {
    const bp_graph raw = make_graph();
    const sdk::GraphView graph(raw);
    sdk::Step step{{0}, operands_, results_};
    auto kernel = make(sdk::StepContext(graph, step, specs_, sdk::Dims({})));
    if (!kernel.ok()) throw std::logic_error("no kernel was made");
    std::vector<std::byte> scratch((*kernel)->scratch_bytes() + 64, std::byte{0xff});
    auto* aligned = reinterpret_cast<std::byte*>(
        (reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) / 64 * 64);
    std::vector<std::byte*> pointers;
    for (const auto& list : {operands_, results_})
      for (const std::uint32_t v : list)
        pointers.push_back(v == BP_NONE ? nullptr : memory_[v].data());
    const sdk::Status status =
        (*kernel)->run({pointers.data(), pointers.data() + operands_.size(), aligned});
    if (!status.ok()) throw std::logic_error("the kernel failed");
  }
  // In row-major order.
  Floats result(std::size_t i) const {
    const std::size_t at = results_[i];
    Floats out;
    each(at, [&](const std::byte* p) {
      float v = 0;
      load_function(known_type(specs_[at].dtype), Domain::kF32)(&v, p, 1, 1);
      out.push_back(v);
    });
    return out;
  }

 private:
  bp_attribute& attribute(const char* name, bp_attribute_kind kind) {
    attributes_.push_back({});
    attributes_.back().name = sdk::raw(name);
    attributes_.back().kind = kind;
    return attributes_.back();
  }
  std::size_t add(const Shape& dims, const Shape& strides, bp_dtype dtype) {
    specs_.push_back(
        {dtype, dims, strides.empty() ? sdk::row_major(dims) : strides, {BP_LAYOUT_STRIDED, 0, 0}});
    memory_.emplace_back(static_cast<std::size_t>(specs_.back().span_bytes() + 64),
                         std::byte{0xff});
    return specs_.size() - 1;
  }
  void each(std::size_t at, const std::function<void(const std::byte*)>& body) const {
    const sdk::TensorSpec& spec = specs_[at];
    Shape index(spec.rank(), 0);
    for (std::int64_t i = 0; i < spec.elements(); ++i) {
      std::int64_t offset = 0, rest = i;
      for (std::size_t d = spec.rank(); d-- > 0; rest /= spec.dims[d])
        offset += rest % spec.dims[d] * spec.strides[d];
      body(memory_[at].data() + offset * sdk::element_bytes(spec.dtype));
    }
  }
  void place(std::size_t at, const Floats& values) {
    std::size_t i = 0;
    each(at, [&](const std::byte* p) {
      store_function(known_type(specs_[at].dtype), Domain::kF32)(const_cast<std::byte*>(p), 1,
                                                                 &values[i++ % values.size()], 1);
    });
  }
  bp_graph make_graph() {
    values_.clear();
    dims_.clear();
    strides_.clear();
    for (const sdk::TensorSpec& s : specs_) {
      bp_value v{};
      v.rank = static_cast<std::uint32_t>(s.rank());
      v.dtype = s.dtype;
      v.first_dim = static_cast<std::uint32_t>(dims_.size());
      v.producer = v.alias_of = BP_NONE;
      v.layout = s.layout;
      dims_.insert(dims_.end(), s.dims.begin(), s.dims.end());
      strides_.insert(strides_.end(), s.strides.begin(), s.strides.end());
      values_.push_back(v);
    }
    indices_ = operands_;
    indices_.insert(indices_.end(), results_.begin(), results_.end());
    node_ = {};
    node_.operand_count = static_cast<std::uint32_t>(operands_.size());
    node_.first_result = node_.operand_count;
    node_.result_count = static_cast<std::uint32_t>(results_.size());
    node_.attribute_count = static_cast<std::uint32_t>(attributes_.size());
    name_.name = sdk::raw(op_);
    flat_.assign(attributes_.begin(), attributes_.end());
    auto g = sdk::make<bp_graph>();
    g.nodes = &node_, g.node_count = 1, g.node_stride = sizeof node_;
    g.values = values_.data(), g.value_count = values_.size(), g.value_stride = sizeof(bp_value);
    g.attributes = flat_.data(), g.attribute_count = flat_.size();
    g.attribute_stride = sizeof(bp_attribute);
    g.ops = &name_, g.op_count = 1, g.op_stride = sizeof name_;
    g.indices = indices_.data(), g.index_count = indices_.size();
    g.dims = dims_.data(), g.strides = strides_.data(), g.dim_count = dims_.size();
    return g;
  }

  std::string op_;
  std::vector<sdk::TensorSpec> specs_;
  std::deque<std::vector<std::byte>> memory_;
  std::vector<std::uint32_t> operands_, results_, indices_;
  std::deque<bp_attribute> attributes_;
  std::vector<bp_attribute> flat_;
  std::deque<Shape> lists_;
  std::vector<bp_value> values_;
  Shape dims_, strides_;
  bp_node node_{};
  bp_op name_{};
};

inline float round_to_bf16(float v) { return to_float(to_bfloat16(v)); }
inline Floats rounded(Floats values) {
  for (float& v : values) v = round_to_bf16(v);
  return values;
}

// Largest difference, relative to the largest expected value.
inline double difference(const Floats& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return 1e9;
  double worst = 0, scale = 1e-30;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - want[i]);
    worst = std::isnan(d) ? 1e9 : std::max(worst, d);
    scale = std::max(scale, std::abs(want[i]));
  }
  return worst / scale;
}

}  // namespace backplane::onednn::testing
