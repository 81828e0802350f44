// An argument while the program is recorded.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/torch/record/session.h"

namespace backplane::record {

// One argument while the program runs.
struct Handed {
  at::Tensor leaf;   // what gradients are asked for
  at::Tensor given;  // what the program gets
  torch::autograd::Node* edge = nullptr;
  const c10::StorageImpl* storage = nullptr;
  std::int64_t version = 0;  // of `given` before the program
  ValueNumber value = kNoValue;
  std::size_t first_argument = 0;
};

std::string argument_text(std::size_t index);
Status unsupported(std::string what);

// The memory that a tensor of the program shows, as functionalization counts it; null for others.
const c10::StorageImpl* storage_of(const at::Tensor& tensor);

// What the tape knows a tensor of the program as now. `reader`: for refusals.
ValueNumber value_of(Session& session, const at::Tensor& tensor, std::string_view reader);

}  // namespace backplane::record
