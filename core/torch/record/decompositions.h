// Operators taken apart above autograd, so that forward and backward see the parts: those whose
// only form is private to one CPU library, those that write arguments without saying so, views
// through which functionalization cannot write as PyTorch does, and operators over lists.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace backplane::record {

// What `native_dropout` computes, from operators that say where their random numbers come from.
std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double probability,
                                           std::optional<bool> train);

// Cells of recurrent layers, for devices that PyTorch's layers ask for whole ones.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cell,
    const std::optional<at::Tensor>& input_bias, const std::optional<at::Tensor>& hidden_bias);
std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates,
                                            const at::Tensor& hidden_gates,
                                            const at::Tensor& hidden,
                                            const std::optional<at::Tensor>& input_bias,
                                            const std::optional<at::Tensor>& hidden_bias);

// Into a library for "aten" on kDecomposeKey.
void register_decompositions(torch::Library& library);

}  // namespace backplane::record
