// One node run by ATen: the operator looked up once, its arguments laid out as a boxed call.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"
#include "core/torch/bridge/live_operator.h"

namespace backplane::bridge {

class AtenNode {
 public:
  // Fails when the operator or one of its argument types is unknown to this build of torch.
  // Random numbers come from `generator`, by default from that of the CPU.
  static Result<AtenNode> prepare(const ir::Node& node, const at::Generator& generator = {});

  // `operands` in the node's order, undefined where absent. Runs below autograd. The results, one
  // per result of the node; undefined where the operator gave none. ATen's own exceptions pass.
  std::vector<at::Tensor> run(std::span<const at::Tensor> operands,
                              std::span<const std::int64_t> class_values) const;

 private:
  enum class ArgumentKind : std::uint8_t {
    kConstant,
    kTensor,
    kOptionalTensor,
    kTensorList,
    kOptionalTensorList,
    kInt,
    kIntList
  };
  struct Argument {
    ArgumentKind kind = ArgumentKind::kConstant;
    std::uint32_t first = 0, count = 0;  // operands
    c10::IValue constant;
    std::vector<ir::Dim> dims;  // kInt (one) and kIntList with dim classes
  };
  explicit AtenNode(c10::OperatorHandle op) : op_(std::move(op)) {}

  LiveOperator op_;
  std::vector<Argument> arguments_;
  std::size_t result_count_ = 0;
  // A storage offset, which a graph counts from its first operand and ATen from the storage's
  // start.
  std::optional<std::size_t> offset_argument_;
};

}  // namespace backplane::bridge
