// One structure of a program, compiled: a forward, or a forward and its backward.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/partition/joint_cut.h"
#include "core/passes/prune_backward.h"
#include "core/torch/autograd/cut_program.h"
#include "core/torch/compiler/compiled_function.h"
#include "core/torch/compiler/read_for_gradients.h"
#include "core/torch/record/recorder.h"

namespace backplane::compiler {

struct CutOptions {
  std::string name = "graph";
  std::vector<runtime::Device*> devices;  // none: every node is run by ATen
  bool pack_inference = true, pack_training = false;
  double memory_budget = 1;  // partition::JointCutOptions
  VerifyOptions verify;
};

std::string role_name(runtime::Role role);  // "inference", "forward", "backward"

struct Stage {
  runtime::Role role = runtime::Role::kInference;
  std::shared_ptr<CompiledFunction> function;
  // Of a forward: what is saved and what is computed twice, for people and as numbers.
  std::string cut;
  std::int64_t saved_bytes = 0;  // without static arguments
  double recompute_seconds = 0;  // predicted
};

// What one structure is compiled into.
class StagedProgram : public autograd::CutProgram {
 public:
  virtual std::vector<Stage> stages() const = 0;  // those that a plugin may have a part in
};

class CutEntry final : public StagedProgram {
 public:
  using Eager = std::function<std::vector<c10::IValue>(std::span<const at::Tensor>)>;

  static Result<std::shared_ptr<CutEntry>> compile(record::Recorded recorded,
                                                   const CutOptions& options,
                                                   Eager eager);  // null: only its operators can

  Result<std::vector<at::Tensor>> forward(std::span<const at::Tensor> inputs,
                                          const autograd::SizeRecord& sizes) override;
  Result<std::vector<at::Tensor>> backward(std::vector<at::Tensor> inputs,
                                           const std::vector<bool>& unwanted,
                                           const autograd::SizeRecord& sizes) override;
  std::vector<bool> saved_read(const passes::Asked& asked) override;
  bool has_many_parts(const passes::Asked& asked) override;
  bool is_of_parent() const override {
    return !options_.verify.strict && backward_ && backward_->is_of_parent();
  }
  std::vector<c10::IValue> run_eagerly(std::span<const at::Tensor> arguments) override {
    return eager_(arguments);
  }

  std::vector<Stage> stages() const override;

 private:
  // A backward for the tangents that a call has and the gradients that it wants.
  struct PartialBackward {
    std::shared_ptr<CompiledFunction> function;  // null: no gradient comes of them
    std::vector<bool> is_given;                  // by output of the whole backward
    std::vector<std::uint32_t> given_on;
  };

  explicit CutEntry(const CutOptions& options) : options_(options) {}
  std::vector<bool> inputs_read(const passes::Asked& asked);
  Result<PartialBackward> partial_backward(const passes::Asked& asked);
  static Result<std::vector<at::Tensor>> run_backward(CompiledFunction& function,
                                                      const std::vector<std::uint32_t>& given_on,
                                                      std::span<Argument> arguments,
                                                      const autograd::SizeRecord& sizes);
  Result<PartialBackward> compile_partial(const passes::Asked& asked) const;
  // `read`: what the graph that is run reads.
  void watch(const record::Recorded& recorded, const ReadForGradients& eagerly_saved,
             const SavedByNodes& saved_by, const ReadForGradients& read);
  std::optional<std::uint32_t> written_uncounted(
      const record::Recorded& recorded, const partition::JointCut& cut,
      const partition::SavedValue& saved, const std::vector<std::vector<std::uint32_t>>& by_eager,
      const std::vector<std::vector<std::uint32_t>>& read) const;
  void describe(const record::Recorded& recorded, const partition::JointCut* cut,
                const ReadForGradients& eagerly_saved, const SavedByNodes& saved_by);

  Eager eager_;
  std::string explanation_;
  std::int64_t saved_bytes_ = 0;
  double recompute_seconds_ = 0;
  std::shared_ptr<CompiledFunction> forward_, backward_;  // backward_: null without gradients
  // For partial ones: how to compile, and the whole backward before it was compiled.
  CutOptions options_;
  Numbers numbers_;
  ir::Graph backward_graph_;
  std::vector<std::uint32_t> given_on_;  // by its output: the tangent among its inputs that it is
  record::Placement backward_placement_;
  std::mutex mutex_;  // guards:
  std::map<passes::Asked, PartialBackward> partial_;
  std::map<passes::Asked, std::vector<bool>> inputs_read_;  // of the whole backward
};

// What a recording says of its arguments and outputs, but for what is saved. `forward`: the graph
// that is run, after passes.
autograd::Signature signature_of(const record::Recorded& recorded, const ir::Graph& forward);

// What a recording says of its sizes.
autograd::SizeRecord size_record(const record::Recorded& recorded);

}  // namespace backplane::compiler
