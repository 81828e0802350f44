// A program as autograd sees it: its calls of PyTorch's operators, taken above autograd, each with
// the switches of the thread that it was made under. Done again on real tensors they have the
// history that plain PyTorch gives, which a recording below autograd has not: detach and no_grad
// leave no trace there. For what differentiates a program twice.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/status.h"
#include "core/torch/record/tape.h"

namespace backplane::record {

class ProgramTape {
 public:
  // While the program is recorded. Inputs come in the order of the recording's graph inputs.
  void add_input(const at::Tensor& real, const at::Tensor& given);
  void begin_call(const OperatorInfo& info, const torch::jit::Stack& stack);
  void end_call(const torch::jit::Stack& stack);
  void add_output(const at::Tensor& output, bool is_differentiable);
  // It says too little of the program.
  void refuse(std::string reason);
  // Nothing follows: the recording's tensors are let go.
  void finish();

  bool is_in_call() const { return in_call_; }
  // However the call ended: one that failed is none.
  void leave_call();

  // A tensor in the place of an input whose content nobody needs.
  at::Tensor stand_in(std::size_t input) const;
  // The outputs, undefined where the program gives no tensor. Writes what the program writes.
  // kUnsupported, with the reason, for what PyTorch's operators alone do not say. ATen's exceptions
  // pass.
  Result<std::vector<at::Tensor>> run(std::span<const at::Tensor> inputs) const;

 private:
  struct Switches {
    bool grad = true;
    std::uint32_t autocast = 0;  // a bit for each device that has it
    std::vector<at::ScalarType> dtypes;
    bool operator==(const Switches&) const = default;
    static Switches current();
    void set() const;
  };
  struct Noted {
    Call call;  // without an operator: `.data` of its operand
    std::uint32_t switches = 0;
    std::vector<bool> requires_grad;  // by operand
  };
  struct Input {
    ValueNumber number = kNoValue;
    std::vector<std::int64_t> sizes, strides;
    at::TensorOptions options;
    bool requires_grad = false;
  };

  ValueNumber find(const at::Tensor& tensor);
  void note(const at::Tensor& tensor, ValueNumber number);
  void note_value(const at::Tensor& tensor, ValueNumber number);
  ValueNumber operand(const at::Tensor& tensor, std::string_view reader);
  ValueNumber result(const at::Tensor& tensor);

  std::vector<Input> inputs_;
  std::vector<Noted> calls_;
  std::vector<Switches> switches_;
  std::vector<ValueNumber> outputs_;
  std::vector<std::pair<ValueNumber, at::Tensor>> constants_;
  std::uint32_t value_count_ = 0;
  std::string refusal_;
  bool in_call_ = false;
  // While recording. A weak reference keeps an address from coming twice.
  std::unordered_map<const c10::TensorImpl*, ValueNumber> known_;
  // By value of the recording.
  std::unordered_map<ValueNumber, ValueNumber> by_value_, by_value_with_history_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> pinned_;
};

// The fallback above autograd: notes the call for the recording's ProgramTape.
void note_call(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
               torch::jit::Stack* stack);

}  // namespace backplane::record
