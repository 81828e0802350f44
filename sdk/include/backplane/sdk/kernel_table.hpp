// A plugin's operators as a table: which there are, what they take, and what makes their kernels.
// The table answers claims and compiles programs.
#pragma once

#include <backplane/sdk/program.hpp>

#include <initializer_list>
#include <string>
#include <unordered_map>

namespace backplane::sdk {

// Copies between two tensors of equal dims and element type that lie where this code can reach
// them.
class StridedCopy final : public Kernel {
 public:
  StridedCopy(TensorSpec source, TensorSpec target)
      : source_(std::move(source)), target_(std::move(target)) {}
  Status run(const KernelCall& call) const override {
    const auto bytes = static_cast<std::size_t>(element_bytes(source_.dtype));
    if (source_.contiguous() && target_.contiguous()) {
      std::memcpy(call.results[0], call.operands[0],
                  bytes * static_cast<std::size_t>(source_.elements()));
      return {};
    }
    copy(call.operands[0], call.results[0], 0, bytes);
    return {};
  }

 private:
  void copy(const std::byte* from, std::byte* to, std::size_t d, std::size_t bytes) const {
    if (d == source_.rank()) {
      std::memcpy(to, from, bytes);
      return;
    }
    const auto size = static_cast<std::int64_t>(bytes);
    for (std::int64_t i = 0; i < source_.dims[d]; ++i)
      copy(from + i * source_.strides[d] * size, to + i * target_.strides[d] * size, d + 1, bytes);
  }
  TensorSpec source_, target_;
};
inline Result<std::unique_ptr<Kernel>> strided_copy(const StepContext& step) {
  return std::make_unique<StridedCopy>(step.operand(0), step.result());
}

struct KernelRow {
  using Make = std::function<Result<std::unique_ptr<Kernel>>(const StepContext&)>;
  using Refuse = std::function<std::optional<Refusal>(const NodeView&)>;

  std::string_view op;
  Make make;
  // Of all operands and results; an operand may also be int64 (indices) where `takes_indices`.
  std::vector<bp_dtype> dtypes{kFloat32};
  bool takes_indices = false;
  // Operands and results are given to the kernel row-major and without gaps: copies are made of
  // those that lie otherwise.
  bool dense = true;
  std::size_t max_rank = 8;
  Refuse refuse{};  // what else it cannot do
  // Instead of `make` where an operand has a layout of the plugin's own; all others come dense.
  Make make_packed{};
};

namespace detail {

// A kernel that wants its tensors dense, with the copies before and after it.
class DenseKernel final : public Kernel {
 public:
  static Result<std::unique_ptr<Kernel>> make(const StepContext& context,
                                              const KernelRow::Make& make_inner,
                                              const KernelFactory& copies) {
    std::vector<TensorSpec> specs = context.specs();
    auto made = std::make_unique<DenseKernel>();
    const auto plan = [&](const std::vector<std::uint32_t>& values, bool is_result,
                          std::vector<Turned>& out) -> Status {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (values[i] == BP_NONE) continue;
        const TensorSpec& given = context.value(values[i]);
        if (given.layout.kind == BP_LAYOUT_OPAQUE || given.contiguous()) continue;
        TensorSpec& dense = specs[values[i]];
        dense.strides = row_major(dense.dims);
        std::vector<TensorSpec> two{is_result ? dense : given, is_result ? given : dense};
        const Step copy{{}, {0}, {1}};
        auto kernel = copies(StepContext(context.graph(), copy, two, context.dims()));
        if (!kernel.ok()) return kernel.status();
        out.push_back({i, made->scratch_bytes_, std::move(*kernel)});
        made->scratch_bytes_ += (static_cast<std::uint64_t>(dense.span_bytes()) + kAlignment - 1) /
                                kAlignment * kAlignment;
      }
      return {};
    };
    BP_SDK_RETURN_IF_ERROR(plan(context.step().operands, false, made->operands_));
    BP_SDK_RETURN_IF_ERROR(plan(context.step().results, true, made->results_));
    auto inner = make_inner(StepContext(context.graph(), context.step(), specs, context.dims()));
    if (!inner.ok() || (made->operands_.empty() && made->results_.empty())) return inner;
    made->inner_ = std::move(*inner);
    made->operand_count_ = context.step().operands.size();
    made->result_count_ = context.step().results.size();
    return std::unique_ptr<Kernel>(std::move(made));
  }

  std::uint64_t scratch_bytes() const override {
    std::uint64_t most = inner_->scratch_bytes();
    for (const auto* turned : {&operands_, &results_})
      for (const Turned& t : *turned) most = std::max(most, t.copy->scratch_bytes());
    return scratch_bytes_ + most;
  }
  Status run(const KernelCall& call) const override {
    std::byte* const scratch = call.scratch + scratch_bytes_;  // of one kernel after the other
    std::vector<std::byte*> operands(call.operands, call.operands + operand_count_);
    std::vector<std::byte*> results(call.results, call.results + result_count_);
    for (const Turned& t : operands_) {
      if (operands[t.position] == nullptr) continue;
      std::byte* const dense = call.scratch + t.offset;
      BP_SDK_RETURN_IF_ERROR(t.copy->run({&operands[t.position], &dense, scratch, call.context}));
      operands[t.position] = dense;
    }
    for (const Turned& t : results_)
      if (results[t.position] != nullptr) results[t.position] = call.scratch + t.offset;
    BP_SDK_RETURN_IF_ERROR(inner_->run({operands.data(), results.data(), scratch, call.context}));
    for (const Turned& t : results_)
      if (results[t.position] != nullptr)
        BP_SDK_RETURN_IF_ERROR(
            t.copy->run({&results[t.position], &call.results[t.position], scratch, call.context}));
    return {};
  }

 private:
  static constexpr std::uint64_t kAlignment = Instance::kAlignment;
  struct Turned {
    std::size_t position;
    std::uint64_t offset;  // in the scratch memory
    std::unique_ptr<Kernel> copy;
  };
  std::unique_ptr<Kernel> inner_;
  std::vector<Turned> operands_, results_;
  std::size_t operand_count_ = 0, result_count_ = 0;
  std::uint64_t scratch_bytes_ = 0;
};

}  // namespace detail

class KernelTable {
 public:
  // `copies` makes the kernel of a step that copies operand 0 to result 0, whatever their strides;
  // left out, the plugin's memory is such that this code can reach it.
  explicit KernelTable(std::vector<KernelRow> rows, KernelFactory copies = {})
      : rows_(std::move(rows)), copies_(std::move(copies)) {
    if (!copies_) copies_ = strided_copy;
    for (std::size_t i = 0; i < rows_.size(); ++i) index_[rows_[i].op] = i;  // the last one counts
  }
  KernelTable(const KernelTable&) = delete;  // its factory refers to it
  KernelTable& operator=(const KernelTable&) = delete;

  const KernelRow* find(std::string_view op) const {
    const auto found = index_.find(op);
    return found == index_.end() ? nullptr : &rows_[found->second];
  }

  // Views need no kernel and are always taken.
  std::optional<Refusal> refuse(const NodeView& node) const {
    if (node.is_view()) return std::nullopt;
    const KernelRow* row = find(node.op());
    const std::string op(node.op());
    if (row == nullptr) return Refusal{0, BP_REFUSED_OP, "no kernel for " + op};
    if (node.raw().effects != 0) return Refusal{0, BP_REFUSED_OP, op + " has effects"};
    const auto check = [&](const ValueView& value, bool is_operand) -> std::optional<Refusal> {
      const bool index = is_operand && row->takes_indices && value.dtype() == kInt64;
      if (!index && std::none_of(row->dtypes.begin(), row->dtypes.end(),
                                 [&](bp_dtype known) { return known == value.dtype(); }))
        return Refusal{0, BP_REFUSED_DTYPE, op + " of this element type"};
      if (value.rank() > row->max_rank)
        return Refusal{0, BP_REFUSED_SHAPE,
                       op + " of more than " + std::to_string(row->max_rank) + " dims"};
      return std::nullopt;
    };
    for (std::size_t i = 0; i < node.operand_count(); ++i)
      if (node.has_operand(i))
        if (auto no = check(node.operand(i), true)) return no;
    for (std::size_t i = 0; i < node.result_count(); ++i)
      if (node.result_index(i) != BP_NONE)
        if (auto no = check(node.result(i), false)) return no;
    return row->refuse ? row->refuse(node) : std::nullopt;
  }
  Claims claims(const GraphView& graph) const {
    return claim_where(graph, [this](const NodeView& node) { return refuse(node); });
  }

  // One kernel per node. The table outlives what the factory makes.
  KernelFactory factory() const {
    return [this](const StepContext& step) -> Result<std::unique_ptr<Kernel>> {
      if (step.step().is_copy()) return copies_(step);
      const KernelRow* row = find(step.node().op());
      if (row == nullptr)
        return Status(BP_UNSUPPORTED, "no kernel for " + std::string(step.node().op()));
      const bool packed = row->make_packed && step.has_opaque_operand();
      const KernelRow::Make& make = packed ? row->make_packed : row->make;
      return row->dense || packed ? detail::DenseKernel::make(step, make, copies_) : make(step);
    };
  }
  std::shared_ptr<ProgramExecutable> compile(const Subgraph& graph,
                                             std::vector<bp_layout> input_layouts = {}) const {
    return std::make_shared<ProgramExecutable>(graph, step_per_node(graph), factory(),
                                               std::move(input_layouts));
  }

 private:
  std::vector<KernelRow> rows_;
  KernelFactory copies_;
  std::unordered_map<std::string_view, std::size_t> index_;
};

}  // namespace backplane::sdk
