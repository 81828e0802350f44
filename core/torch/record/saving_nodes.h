// Which of autograd's nodes have saved something for the backward.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <span>
#include <vector>

#include "core/torch/record/recorder.h"
#include "core/torch/record/tape.h"

namespace backplane::record {

// Where the gradients of a recording come from and go to.
struct HistoryEnds {
  std::vector<const torch::autograd::Node*> outputs;  // by tangent; null: a leaf of the program
  std::vector<const torch::autograd::Node*> leaves;   // by argument; null: has no gradient
};

// Those behind which calls of the backward read values that were there before it, the first
// `value_count`. That numbers are saved does not show: each read makes a constant of them.
std::vector<SavingNode> find_saving_nodes(const Tape& tape, std::size_t value_count,
                                          std::span<const ValueNumber> tangents,
                                          const HistoryEnds& ends);

}  // namespace backplane::record
