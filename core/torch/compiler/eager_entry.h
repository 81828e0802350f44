// A recorded forward run by ATen, node by node, under PyTorch's own autograd.
#pragma once

#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/ir/dim_expression.h"
#include "core/torch/bridge/aten_node.h"
#include "core/torch/compiler/cut_entry.h"
#include "core/torch/record/recorder.h"

namespace backplane::compiler {

class EagerEntry final : public StagedProgram {
 public:
  // `recorded`: without backward.
  static Result<std::shared_ptr<EagerEntry>> compile(record::Recorded recorded);

  Result<std::vector<at::Tensor>> forward(std::vector<at::Tensor> inputs,
                                          const autograd::SizeRecord& sizes) override;
  // Never called: autograd has nodes of its own.
  Result<std::vector<at::Tensor>> backward(std::vector<at::Tensor> inputs,
                                           const autograd::SizeRecord& sizes) override;
  std::vector<c10::IValue> run_eagerly(std::span<const at::Tensor> arguments) override;
  std::vector<Stage> stages() const override { return {}; }

 private:
  explicit EagerEntry(record::Recorded recorded) : recorded_(std::move(recorded)) {}

  record::Recorded recorded_;
  ir::DimProgram dims_;
  std::vector<bridge::AtenNode> nodes_;
  std::vector<std::vector<ir::ValueId>> last_read_;  // by node: results that nobody reads later
};

}  // namespace backplane::compiler
