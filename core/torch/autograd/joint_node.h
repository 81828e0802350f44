// The node that a call of a cut program leaves in autograd's graph.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/torch/autograd/cut_program.h"

namespace backplane::autograd {

// A shared or an intrusive pointer, by release of PyTorch.
using NodePointer = decltype(torch::autograd::Edge::function);

// The backward of one call, which its nodes share.
class Joint {
 public:
  // `generator`: the state that the program drew from; undefined where it draws nothing.
  Joint(std::shared_ptr<CutProgram> program, std::shared_ptr<const SizeRecord> sizes,
        std::span<const at::Tensor> arguments, at::Tensor generator);

  // Where the gradient of an argument comes to that is a leaf.
  void lead_to(std::uint32_t argument, NodePointer accumulator);

  // Every saved value once, in order, after the outputs have their history.
  void save(const at::Tensor& value, bool is_output) { saved_.emplace_back(value, is_output); }
  // A hook has raised: not all is saved.
  void abandon() { is_abandoned_ = true; }

  // What `signature.watched` names, once each and in order; undefined: nobody needs to know of it.
  void watch(const at::Tensor& value);

  // All tangents, those of other nodes undefined; gives all gradients that are not unwanted.
  // `node`: which of its nodes asks. `releases`: saved values go as they are read.
  torch::autograd::variable_list run(torch::autograd::variable_list&& tangents,
                                     std::vector<bool> unwanted, std::uint32_t node, bool releases);
  // What comes of the output of a tangent to these others, as a program that PyTorch runs again has
  // it; to each not by way of another of them. In the backward that runs, what comes to them is no
  // longer part of what comes of the output.
  torch::autograd::variable_list differentiate_results(
      std::uint32_t tangent, const at::Tensor& given,
      std::span<const record::GradientSource> results);
  // What runs that keep no graph have read goes.
  void release();

  const Signature& signature() const { return program_->signature; }

 private:
  void note_released(const passes::Asked& asked);
  void refuse_twice(const passes::Asked& asked) const;
  void release_read();
  // In eager mode no backward comes to a leaf that the tangents do not reach.
  void spare_hooks(const torch::autograd::variable_list& gradients, std::uint32_t node) const;
  at::Tensor unpack(std::size_t saved) const;
  // By saved value.
  std::vector<bool> saved_read(const passes::Asked& asked) const;
  std::vector<bool> saved_left() const;
  // A backward for all gradients takes the place of one more for some, where that is possible.
  void want_all_if_cheaper(passes::Asked& asked, std::vector<bool>& is_read) const;

  // Raises where eager mode does. True: what was saved was written, and eager mode has no need of
  // it.
  bool check_watched(const passes::Asked& asked) const;

  // Nothing goes past the results `apart` but their own tangents.
  torch::autograd::variable_list differentiate_again(
      const torch::autograd::variable_list& tangents,
      std::span<const record::GradientSource> apart) const;
  struct Rerun {
    std::vector<at::Tensor> inputs;
    torch::autograd::variable_list results;  // by output of the program
    std::vector<at::Tensor> differentiated;  // by tangent

    const at::Tensor& source(const record::GradientSource& of) const {
      return of.is_view ? results[of.position] : differentiated[of.position];
    }
  };
  Rerun run_again() const;
  // The results whose gradients have been asked for apart, in this backward and for this node.
  std::vector<record::GradientSource> take_apart(std::uint32_t node);
  bool is_written(std::uint32_t input) const;  // by the program
  at::Tensor before_writes(std::uint32_t input) const;
  // The arguments under names of their own; by input of the forward.
  std::vector<at::Tensor> inputs_again() const;
  // Runs the program on its inputs.
  void make_results_again(Rerun& again) const;

  std::shared_ptr<CutProgram> program_;
  std::shared_ptr<const SizeRecord> sizes_;
  // Hooks of saved tensors run under it, and may differentiate another part of the program.
  std::recursive_mutex mutex_;
  std::vector<torch::autograd::SavedVariable> saved_;
  std::vector<std::pair<c10::VariableVersion, std::uint32_t>> watched_;  // as it was saved
  // For a second differentiation only. Those that it needs are held until the last apply, as eager
  // mode holds what it saves. Of those that the program writes, whose history leads back here, what
  // was in them before, by input of the forward.
  std::vector<at::Tensor> held_;
  std::unordered_map<std::uint32_t, at::Tensor> before_;
  // A leaf is found by where its gradient comes to: what is held weakly cannot be swapped.
  struct Argument {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    NodePointer accumulator;
    std::uint32_t version = 0;

    at::Tensor lock() const;
  };
  std::vector<Argument> arguments_;
  at::Tensor generator_;
  bool is_released(std::size_t saving_node) const {
    return is_spent_ || (!released_.empty() && released_[saving_node]);
  }
  bool is_left(std::size_t saved) const {
    return !is_spent_ && (is_left_.empty() || is_left_[saved]);
  }
  struct Apart {
    int backward;  // autograd's number of it
    std::uint32_t node;
    record::GradientSource result;
  };
  std::vector<Apart> apart_;
  // Of runs that keep no graph. Empty: there was none.
  bool is_spent_ = false;  // all gradients of all tangents were
  bool is_abandoned_ = false;
  std::vector<bool> released_;  // by what eager mode has in place of this: Signature::saving_nodes
  std::vector<bool> is_left_;   // by saved value: a backward that comes by none of them reads it
};

class JointNode final : public torch::autograd::Node {
 public:
  JointNode(std::shared_ptr<Joint> joint, std::uint32_t number);

  std::string name() const override { return "BackplaneBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& tangents) override;
  void release_variables() override { joint_->release(); }
  void will_release_variables() override { releases_ = true; }

 private:
  // By all of the joint's gradients: whether the backward that runs has no use for it.
  std::vector<bool> unwanted_gradients() const;

  std::shared_ptr<Joint> joint_;
  const std::uint32_t number_;
  // Positions among the joint's; empty for its only node, which has them all.
  std::vector<std::uint32_t> tangents_, gradients_;
  std::atomic<bool> releases_ = false;  // this apply keeps no graph
};

// Of the CPU's generator.
at::Tensor generator_state();
void set_generator_state(const at::Tensor& state);

// Second differentiations so far, in this process: they run by PyTorch.
std::uint64_t second_differentiations();

// Nodes are held by one pointer type up to torch 2.12 and by another from 2.13 on.
template <class Made, class Pointer = NodePointer, class... Arguments>
Pointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<Made>(std::forward<Arguments>(arguments)...);
  else
    return c10::make_intrusive<Made>(std::forward<Arguments>(arguments)...);
}

}  // namespace backplane::autograd
