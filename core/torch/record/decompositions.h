// Operators taken apart above autograd, so that forward and backward see the parts: those whose
// only form is private to one CPU library, those that write arguments without saying so, and views
// through which functionalization cannot write as PyTorch does.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace backplane::record {

// What `native_dropout` computes, from operators that say where their random numbers come from.
std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double probability,
                                           std::optional<bool> train);

// Into a library for "aten" on kDecomposeKey.
void register_decompositions(torch::Library& library);

}  // namespace backplane::record
