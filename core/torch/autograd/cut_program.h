// A program cut into forward and backward, as autograd calls it: what goes in and out, apart from
// how it is run.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/passes/prune_backward.h"
#include "core/torch/record/recorder.h"

namespace backplane::autograd {

using record::kAbsent;

// A value that the forward hands to the backward.
struct SavedSource {
  bool is_argument = false;
  std::uint32_t position = 0;           // is_argument: of the forward's inputs, else of its outputs
  std::uint32_t shared_with = kAbsent;  // the program's output that shows the same memory
  bool needs_copy = false;              // others may write its memory
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

// What the program shows or was given, and the backward reads. Who writes it before the gradients
// of these tangents are asked for gets an error where eager mode saves it, also where the backward
// computes its value anew; else, as a pass found in it what eager mode computes anew, the program
// runs again.
struct Watched {
  bool is_argument = false;
  std::uint32_t position = 0;  // is_argument: of the forward's inputs, else of program outputs
  std::vector<std::uint32_t> saved_for, found_for;  // tangents
  // Of Signature::saving_nodes, where they are known: for what they are not on the way to, eager
  // mode does not save it.
  std::vector<std::uint32_t> saved_by;
};

// An output that is computed from others.
struct DerivedResult {
  std::uint32_t tangent = 0;
  std::uint32_t output = kAbsent;               // of the program; absent: a written argument
  std::uint32_t value = 0;                      // its content, among the forward's outputs
  std::vector<record::GradientSource> sources;  // all the way
};

// Equal for all sizes of one structure.
struct Signature {
  std::vector<record::ArgumentInfo> arguments;   // of the program
  std::vector<std::uint32_t> argument_of_input;  // by input of the forward: the first that is it
  std::vector<SavedSource> saved;
  std::vector<Watched> watched;
  std::uint32_t tangent_count = 0;
  std::vector<std::vector<std::uint32_t>> tangents_of_gradient;  // whose outputs it is behind
  std::vector<std::uint32_t>
      gradients;  // inputs of the forward that get one, in the backward's order
  std::vector<record::SavingNode> saving_nodes;  // their gradients in that order, too
  std::vector<std::uint32_t> turn_of_gradient;   // in what order eager mode's backward has them
  // Parts of the backward that have no tangent and no gradient in common are nodes of their own in
  // autograd's graph, as in eager mode: who differentiates one does not come by the others.
  std::uint32_t node_count = 1;
  std::vector<std::uint32_t> node_of_tangent, node_of_gradient;
  std::vector<DerivedResult> derived;            // each behind its sources
  std::vector<std::uint32_t> mutated;            // inputs of the forward that the program writes
  std::vector<std::uint32_t> counted_unwritten;  // others whose version it moves
  std::vector<bool> copied_outputs;  // by program output: fresh, but shown by other memory too
  // By input of the forward: it makes tensors of it, and not only reads its memory.
  std::vector<bool> counted_inputs;
  bool grad_mode_after = true;
  bool is_repeatable = true;  // draws nothing, writes no argument, and Python can run it
  bool draws = false, draws_on_device = false;  // random numbers
  // By input of the forward: the gradients depend on its content. Empty where there are none.
  std::vector<bool> needs_content;
};

// What of a program holds for one set of sizes only.
struct SizeRecord {
  // Offsets are relative to the argument or output that is `base`.
  std::vector<record::OutputInfo> outputs;
  std::vector<std::vector<std::int64_t>> gradient_strides;  // as Signature::gradients has them
  std::vector<std::int64_t> class_values;  // of the dim classes that no expression gives
  std::shared_ptr<const record::ProgramTape> program;  // for a second differentiation
};

class CutProgram {
 public:
  virtual ~CutProgram() = default;

  // Tensors in order of the graph's inputs, which outlive the call; gives the graph's outputs. Any
  // thread, without the GIL. ATen's exceptions pass.
  virtual Result<std::vector<at::Tensor>> forward(std::span<const at::Tensor> inputs,
                                                  const SizeRecord& sizes) = 0;
  // Inputs: saved values, then tangents, undefined for outputs that nobody differentiates; what is
  // saved for such alone, or for unwanted gradients, may be undefined too. Unwanted gradients, and
  // those that come of such outputs alone, are undefined.
  virtual Result<std::vector<at::Tensor>> backward(std::vector<at::Tensor> inputs,
                                                   const std::vector<bool>& unwanted,
                                                   const SizeRecord& sizes) = 0;
  // By saved value. As in eager mode, what is not read may have been written since.
  virtual std::vector<bool> saved_read([[maybe_unused]] const passes::Asked& asked) {
    return std::vector<bool>(signature.saved.size(), true);
  }
  // There are so many backwards for some gradients that one for all does as well.
  virtual bool has_many_parts([[maybe_unused]] const passes::Asked& asked) { return false; }
  // A back end's own function: what Python raises in it is the caller's.
  virtual bool is_foreign() const { return false; }
  // Its devices are those of the process that this one was forked from: PyTorch differentiates it.
  virtual bool is_of_parent() const { return false; }
  // The program run by PyTorch, whose autograd then knows its history. Where it is repeatable.
  virtual std::vector<c10::IValue> run_eagerly(std::span<const at::Tensor> arguments) = 0;

  Signature signature;
};

// The arguments of which a call makes tensors: they want a reference of C++, made with the GIL. Of
// the others it only reads the memory.
std::vector<std::uint32_t> counted_arguments(const Signature& signature, const SizeRecord& sizes);

// False where a call is PyTorch's own to make. The program writes a tensor that shares its memory
// with another: a graph holds for apart ones only. Or one that autograd lets nobody write, such as
// a leaf or a view of it: the program raises there, not after all that it computes. Or a view whose
// history that write makes anew: a graph has one gradient for what is read before and after it.
// `arguments`: the program's tensors; in the caller's grad mode.
bool may_write(const Signature& signature, std::span<const at::Tensor> arguments);

// What the caller does with an exception of the forward. Where the program runs again it draws
// again, so the generator goes back. A Status that is no success always means that it does.
enum class Errors : std::uint8_t { kRaise, kRunAgain };

// One call: runs the forward, writes changed arguments back, hangs the backward on the outputs.
// Alive as long as an output's history: `program` and `sizes`. What a hook of saved tensors raises
// comes behind all that; `out_raised_by_hook` takes it, and the call gives its results.
Result<std::vector<c10::IValue>> call(const std::shared_ptr<CutProgram>& program,
                                      const std::shared_ptr<const SizeRecord>& sizes,
                                      std::span<const at::Tensor> arguments,
                                      Errors errors = Errors::kRaise,
                                      std::exception_ptr* out_raised_by_hook = nullptr);
// Whether the call that ended last on this thread did so with an exception of its forward: it has
// written nothing then, and may be run again. Asked once.
bool take_forward_failure();

}  // namespace backplane::autograd
