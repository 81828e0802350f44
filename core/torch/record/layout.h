// Where the elements of functional tensors lie. A write in place moves nothing in the program, but
// functionalization lays a written tensor, and its views, out as the new value happens to lie. What
// `reshape` gives after that, a view or a copy, may be another than in the program.
#pragma once

#include <ATen/FunctionalStorageImpl.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/torch/record/operator_info.h"

namespace backplane::record {

class Session;

// Of tensors that lie otherwise than in the program.
struct Moved {
  at::Tensor tensor;
  std::vector<std::int64_t> strides;  // as in the program
};

// The storage that a functional tensor and its views share.
at::functionalization::FunctionalStorageImpl& functional_storage(const at::Tensor& tensor);

// Of the operands of one call; its arguments end the stack.
class Layouts {
 public:
  Layouts(const OperatorInfo& info, const torch::jit::Stack& stack);
  // After the call, where it was not to change how they lie: lays what it wrote out as that lay
  // before, and notes in the session which still lie otherwise.
  void note_moves(Session& session) const;

 private:
  void lay_out_again() const;

  struct Seen {
    at::Tensor tensor;
    std::vector<std::int64_t> sizes, strides;
  };
  std::vector<Seen> seen_;
  std::vector<Seen> bases_;  // of each that is written: the whole memory's sizes and strides
};

// Why a call cannot be recorded to whose result it matters how memory lies that was moved. Empty
// where it can. Notes in the session of which memory strides are taken.
std::string find_moved(Session& session, const OperatorInfo& info, const torch::jit::Stack& stack);

// Whether strides and offset of a tensor of the current recording are those that it has in the
// program.
bool lies_as_in_program(const at::Tensor& tensor);

// Whether the program has written its memory: its new value starts where that starts.
bool is_written(const at::Tensor& tensor);

}  // namespace backplane::record
