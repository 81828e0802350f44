// Tensors seen as dense row-major memory: where they lie if they are, else through a copy in the
// scratch memory of the call.
#pragma once

#include "kernels/movement/strided_copy.h"

namespace backplane::onednn {

// Shares out the scratch memory of one kernel.
class ScratchPlan {
 public:
  std::uint64_t take(std::int64_t bytes) {
    const std::uint64_t at = bytes_;
    bytes_ += (static_cast<std::uint64_t>(bytes) + 63) / 64 * 64;
    return at;
  }
  std::uint64_t take_floats(std::int64_t count) { return take(count * 4); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
};

class DenseOperand {
 public:
  DenseOperand() = default;  // absent
  // `as`: the order of memory wanted, as strides over the tensor's dims; row-major if empty.
  DenseOperand(const sdk::StepContext& context, std::size_t operand, ScratchPlan& plan,
               Shape as = {})
      : operand_(operand) {
    const sdk::TensorSpec& spec = context.operand(operand);
    type_ = known_type(spec.dtype);
    if (as.empty()) as = sdk::row_major(spec.dims);
    for (std::size_t d = 0; d < spec.rank(); ++d)
      if (spec.dims[d] != 1 && spec.strides[d] != as[d]) copied_ = true;
    if (!copied_ || spec.elements() == 0) return;
    copy_ = StridedCopy(spec.dims, as, spec.strides, bytes_of(type_));
    offset_ = plan.take(spec.elements() * bytes_of(type_));
  }
  static DenseOperand optional(const sdk::StepContext& context, std::size_t operand,
                               ScratchPlan& plan) {
    return context.has_operand(operand) ? DenseOperand(context, operand, plan) : DenseOperand();
  }

  bool present() const { return operand_ != SIZE_MAX; }
  Type type() const { return type_; }
  // Copies if need be: once per call.
  const std::byte* get(const sdk::KernelCall& call) const {
    if (!present() || !copied_ || call.operands[operand_] == nullptr)
      return present() ? call.operands[operand_] : nullptr;
    copy_.run(call.scratch + offset_, call.operands[operand_]);
    return call.scratch + offset_;
  }

 private:
  std::size_t operand_ = SIZE_MAX;
  Type type_ = Type::kF32;
  bool copied_ = false;
  StridedCopy copy_;
  std::uint64_t offset_ = 0;
};

class DenseResult {
 public:
  DenseResult() = default;  // nobody asked for it
  DenseResult(const sdk::StepContext& context, std::size_t result, ScratchPlan& plan, Shape as = {})
      : result_(result) {
    const sdk::TensorSpec& spec = context.result(result);
    type_ = known_type(spec.dtype);
    if (as.empty()) as = sdk::row_major(spec.dims);
    for (std::size_t d = 0; d < spec.rank(); ++d)
      if (spec.dims[d] != 1 && spec.strides[d] != as[d]) copied_ = true;
    if (!copied_ || spec.elements() == 0) return;
    copy_ = StridedCopy(spec.dims, spec.strides, as, bytes_of(type_));
    offset_ = plan.take(spec.elements() * bytes_of(type_));
  }
  // By the node's output_mask, where it has one.
  static DenseResult optional(const sdk::StepContext& context, std::size_t result,
                              ScratchPlan& plan, Shape as = {}) {
    if (result >= context.step().results.size() || context.step().results[result] == BP_NONE)
      return {};
    const auto mask = context.ints("output_mask");
    if (result < mask.size() && mask[result] == 0) return {};
    return {context, result, plan, std::move(as)};
  }

  bool present() const { return result_ != SIZE_MAX; }
  Type type() const { return type_; }
  std::byte* get(const sdk::KernelCall& call) const {
    if (!present()) return nullptr;
    return copied_ && call.results[result_] ? call.scratch + offset_ : call.results[result_];
  }
  // After the last write.
  void finish(const sdk::KernelCall& call) const {
    if (present() && copied_ && call.results[result_])
      copy_.run(call.results[result_], call.scratch + offset_);
  }

 private:
  std::size_t result_ = SIZE_MAX;
  Type type_ = Type::kF32;
  bool copied_ = false;
  StridedCopy copy_;
  std::uint64_t offset_ = 0;
};

}  // namespace backplane::onednn
