// The node that a call of a cut program leaves in autograd's graph.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/torch/autograd/cut_program.h"

namespace backplane::autograd {

class JointNode final : public torch::autograd::Node {
 public:
  // `generator`: the state that the program drew from; undefined where it draws nothing.
  JointNode(std::shared_ptr<CutProgram> program, std::shared_ptr<const SizeRecord> sizes,
            std::span<const at::Tensor> arguments, at::Tensor generator);

  // Every saved value once, in order, after the outputs have their history.
  void save(const at::Tensor& value, bool is_output) { saved_.emplace_back(value, is_output); }

  // What `signature.watched` names, once each and in order.
  void watch(const at::Tensor& value);

  std::string name() const override { return "BackplaneBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& tangents) override;
  void release_variables() override;
  void will_release_variables() override;

 private:
  bool is_left(std::size_t saved) const { return !left_.empty() && left_[saved]; }
  void note_given(const torch::autograd::variable_list& tangents, const std::vector<bool>& is_read);

  // Raises where eager mode does. True: what was saved was written, and eager mode has no need of
  // it.
  bool check_watched(const torch::autograd::variable_list& tangents) const;

  torch::autograd::variable_list differentiate_again(
      const torch::autograd::variable_list& tangents) const;
  // The arguments under names of their own; by input of the forward.
  std::vector<at::Tensor> inputs_again() const;
  // Runs the program on them: the tensors that the tangents belong to.
  torch::autograd::variable_list outputs_again(const std::vector<at::Tensor>& inputs) const;

  std::shared_ptr<CutProgram> program_;
  std::shared_ptr<const SizeRecord> sizes_;
  std::vector<torch::autograd::SavedVariable> saved_;
  std::vector<std::pair<c10::VariableVersion, std::uint32_t>> watched_;  // as it was saved
  // For a second differentiation only. Those that it needs are held until the last apply, as eager
  // mode holds what it saves; but not those that the program writes, whose history leads back here.
  std::vector<at::Tensor> held_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> arguments_;
  std::vector<std::uint32_t> versions_;
  at::Tensor generator_;
  bool releases_ = false;  // this apply keeps no graph: saved values go as they are read
  // Behind an apply that was not given all tangents, which may come in one of their own.
  std::vector<bool> was_given_;  // by tangent
  std::vector<bool> left_;       // by saved value: no apply has read it; empty: none is left
};

// Of the CPU's generator.
at::Tensor generator_state();

// Second differentiations so far, in this process: they run by PyTorch.
std::uint64_t second_differentiations();

// Nodes are held by one pointer type up to torch 2.12 and by another from 2.13 on.
using NodePointer = decltype(torch::autograd::Edge::function);
template <class Made, class Pointer = NodePointer, class... Arguments>
Pointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<Made>(std::forward<Arguments>(arguments)...);
  else
    return c10::make_intrusive<Made>(std::forward<Arguments>(arguments)...);
}

}  // namespace backplane::autograd
