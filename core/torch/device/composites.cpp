#include "core/torch/device/composites.h"

#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_native_batch_norm_legit.h>
#include <ATen/ops/_native_batch_norm_legit_no_training.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "core/torch/device/counters.h"
#include "core/torch/device/memory.h"
#include "core/torch/record/decompositions.h"

namespace backplane::device {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool is_given(const OptionalTensor& tensor) { return tensor && tensor->defined(); }

// ---- Batch norm: schemas hide that they write the running statistics.

std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& input, const OptionalTensor& weight,
                                              const OptionalTensor& bias,
                                              const OptionalTensor& running_mean,
                                              const OptionalTensor& running_variance, bool training,
                                              double momentum, double epsilon) {
  const bool has_statistics = is_given(running_mean) && is_given(running_variance);
  // The CPU's kernel reads there.
  TORCH_CHECK(training || has_statistics,
              "running_mean and running_var must be defined in evaluation mode");
  if (!has_statistics)
    return at::_native_batch_norm_legit(input, weight, bias, training, momentum, epsilon);
  if (!training)
    return at::_native_batch_norm_legit_no_training(input, weight, bias, *running_mean,
                                                    *running_variance, momentum, epsilon);
  auto [result, mean, inverse_deviation, new_mean, new_variance] =
      at::_native_batch_norm_legit_functional(input, weight, bias, *running_mean, *running_variance,
                                              training, momentum, epsilon);
  running_mean->copy_(new_mean);
  running_variance->copy_(new_variance);
  return {result, mean, inverse_deviation};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_legit(const Tensor& input,
                                                    const OptionalTensor& weight,
                                                    const OptionalTensor& bias,
                                                    Tensor& running_mean, Tensor& running_variance,
                                                    bool training, double momentum,
                                                    double epsilon) {
  return batch_norm(input, weight, bias, running_mean, running_variance, training, momentum,
                    epsilon);
}

// The CPU computes: its sums of squares are those of its own kernel.
std::tuple<Tensor, Tensor> update_batch_norm_statistics(const Tensor& input,
                                                        const OptionalTensor& running_mean,
                                                        const OptionalTensor& running_variance,
                                                        double momentum) {
  count_fallback("aten::batch_norm_update_stats", "it writes its statistics");
  const CauseScope cause(runtime::CopyCause::kFallback);
  const auto on_host = [](const OptionalTensor& tensor) {
    return is_given(tensor) ? OptionalTensor(tensor->cpu()) : std::nullopt;
  };
  const OptionalTensor mean = on_host(running_mean), variance = on_host(running_variance);
  const auto [batch_mean, batch_variance] =
      at::batch_norm_update_stats(input.cpu(), mean, variance, momentum);
  if (mean) running_mean->copy_(*mean);
  if (variance) running_variance->copy_(*variance);
  return {batch_mean.to(input.device()), batch_variance.to(input.device())};
}

// ---- Attention: the CPU's choice without dropout, whose one operator plugins take; else by parts.

std::int64_t choose_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                              const OptionalTensor& mask, double dropout, bool is_causal,
                              std::optional<double> scale, bool grouped) {
  if (dropout > 0) return static_cast<std::int64_t>(at::SDPBackend::math);
  return at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, is_causal, scale,
                                           grouped);
}

// Copies at once: PyTorch copies no storages of other packages' when they are written.
Tensor lazy_clone(const Tensor& self) {
  const auto bytes = static_cast<std::int64_t>(self.storage().nbytes());
  const Tensor whole = over_memory(self, {bytes}, {1}, 0, at::kByte).clone();
  return over_memory(whole, self.sizes(), self.strides(), self.storage_offset(),
                     self.scalar_type());
}

torch::Library& make_library(c10::DispatchKey key) {
  // Never destroyed: a kernel that vanishes at the end of the process would be called.
  return *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
}

}  // namespace

void register_composites() {
  for (const c10::DispatchKey key :
       {c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::PrivateUse1}) {
    torch::Library& cells = make_library(key);
    cells.impl("_thnn_fused_lstm_cell", TORCH_FN(record::lstm_cell));  // layers ask for them here
    cells.impl("_thnn_fused_gru_cell", TORCH_FN(record::gru_cell));
  }
  torch::Library& composites = make_library(c10::DispatchKey::PrivateUse1);
  composites.impl("native_batch_norm", TORCH_FN(batch_norm));
  composites.impl("_native_batch_norm_legit", TORCH_FN(batch_norm_legit));
  composites.impl("batch_norm_update_stats", TORCH_FN(update_batch_norm_statistics));
  composites.impl("_lazy_clone", TORCH_FN(lazy_clone));
  composites.impl("native_dropout", TORCH_FN(record::dropout));
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose_attention);
  // Else resolving a conjugation copies, and the copy resolves it first, without end.
  for (const c10::DispatchKey key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative})
    make_library(key).impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace backplane::device
