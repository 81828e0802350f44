#include "core/torch/record/decompositions.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_fused_sdp_choice_native.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/torch/bridge/new_memory.h"
#include "core/torch/record/dispatch.h"
#include "core/torch/record/program_tape.h"
#include "core/torch/record/session.h"
#include "core/torch/record/value_tensor.h"

namespace backplane::record {

namespace {

using c10::DispatchKey;
using OptionalTensor = std::optional<at::Tensor>;

bool is_given(const OptionalTensor& tensor) { return tensor && tensor->defined(); }
at::Tensor plus(const at::Tensor& tensor, const OptionalTensor& bias) {
  return is_given(bias) ? tensor + *bias : tensor;
}

// Its schema hides that it writes the running statistics; these three say what they do.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
    const OptionalTensor& mean, const OptionalTensor& variance, bool training, double momentum,
    double epsilon) {
  if (!is_given(mean) || !is_given(variance))
    return at::_native_batch_norm_legit(input, weight, bias, training, momentum, epsilon);
  at::Tensor running_mean = *mean, running_variance = *variance;
  if (training)
    return at::_native_batch_norm_legit(input, weight, bias, running_mean, running_variance,
                                        training, momentum, epsilon);
  return at::_native_batch_norm_legit_no_training(input, weight, bias, running_mean,
                                                  running_variance, momentum, epsilon);
}

constexpr std::int64_t kLstm = 2;  // the mode's number

// One direction of one layer, whatever the counts say of the whole. inputs [time, batch, features];
// hidden, cell [batch, size] or [1, batch, size].
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> rnn_layer(
    const at::Tensor& inputs, const at::Tensor& w_input, const at::Tensor& w_hidden,
    const at::Tensor& b_input, const at::Tensor& b_hidden, const at::Tensor& hidden,
    const at::Tensor& cell, bool reverse, at::IntArrayRef batch_sizes, std::int64_t mode,
    std::int64_t hidden_size, std::int64_t layer_count, bool has_biases, bool bidirectional,
    bool batch_first, bool train) {
  if (mode != kLstm || !batch_sizes.empty()) {
    const c10::impl::ExcludeDispatchKeyGuard whole(kDecomposeKey);
    return at::mkldnn_rnn_layer(inputs, w_input, w_hidden, b_input, b_hidden, hidden, cell, reverse,
                                batch_sizes, mode, hidden_size, layer_count, has_biases,
                                bidirectional, batch_first, train);
  }
  const OptionalTensor bias = has_biases ? OptionalTensor(b_input + b_hidden) : std::nullopt;
  std::vector<at::Tensor> steps = at::linear(inputs, w_input, bias).unbind(0);
  if (reverse) std::reverse(steps.begin(), steps.end());
  const bool is_stacked = hidden.dim() == 3;
  at::Tensor state = is_stacked ? hidden[0] : hidden, memory = is_stacked ? cell[0] : cell;
  std::vector<at::Tensor> outputs;
  outputs.reserve(steps.size());
  for (const at::Tensor& step : steps) {
    const std::vector<at::Tensor> gates = (at::linear(state, w_hidden) + step).chunk(4, 1);
    memory = gates[1].sigmoid() * memory + gates[0].sigmoid() * gates[2].tanh();
    state = gates[3].sigmoid() * memory.tanh();
    outputs.push_back(state);
  }
  if (reverse) std::reverse(outputs.begin(), outputs.end());
  if (is_stacked) {
    state = state.unsqueeze(0);
    memory = memory.unsqueeze(0);
  }
  return {at::stack(outputs, 0), state, memory, at::empty({0}, inputs.options().dtype(at::kByte))};
}

// ---- PyTorch's own devices: composites ask a tensor's device, not its keys, for libraries.

class WithoutCudnn {
 public:
  WithoutCudnn() { at::globalContext().setUserEnabledCuDNN(false); }
  ~WithoutCudnn() { at::globalContext().setUserEnabledCuDNN(was_enabled_); }
  WithoutCudnn(const WithoutCudnn&) = delete;
  WithoutCudnn& operator=(const WithoutCudnn&) = delete;

 private:
  const bool was_enabled_ = at::globalContext().userEnabledCuDNN();
};

// As on the CPU: what it makes of them are operators that plugins know.
void without_library(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  const std::size_t base = stack->size() - handle.schema().arguments().size();
  const c10::IValue& first = (*stack)[base];
  if (!first.isTensor() || !is_of_pytorch(first.toTensor().device()))
    return note_call(handle, keys, stack);
  const WithoutCudnn scope;
  note_call(handle, keys, stack);
}

// As PyTorch, which asks whether a gradient is wanted, and takes every tensor of a recording for
// one that may want it: values alone are cheaper, and exist where vectors do not.
bool wants_vectors(const at::Tensor& matrix) {
  return c10::GradMode::is_enabled() && matrix.requires_grad();
}
at::Tensor eigenvalues(const at::Tensor& matrix, c10::string_view triangle) {
  return std::get<0>(at::_linalg_eigh(matrix, triangle, wants_vectors(matrix)));
}
at::Tensor general_eigenvalues(const at::Tensor& matrix) {
  return wants_vectors(matrix) ? std::get<0>(at::linalg_eig(matrix)) : at::_linalg_eigvals(matrix);
}
at::Tensor singular_values(const at::Tensor& matrix, std::optional<c10::string_view> driver) {
  return std::get<1>(
      at::_linalg_svd(matrix, /*full_matrices=*/false, wants_vectors(matrix), driver));
}

at::Scalar content_of_new_memory(at::ScalarType dtype) {
  const BelowRecording below;
  at::Tensor one = at::detail::empty_strided_cpu({}, {}, dtype);
  at::native::fill_empty_deterministic_(one);
  return one.item();
}

void allocate(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
              torch::jit::Stack* stack) {
  note_call(handle, keys, stack);
  if (!bridge::fills_new_memory()) [[likely]]
    return;
  const at::Tensor made = stack->back().toTensor();
  stack->back() = at::fill(made, content_of_new_memory(made.scalar_type()));
}

// The mask is added in place of the weights.
void check_mask(const at::Tensor& query, const at::Tensor& key, const at::Tensor& mask) {
  if (query.dim() < 2 || key.dim() < 2) return;
  std::vector<std::int64_t> weights =
      at::infer_size(query.sizes().slice(0, query.dim() - 2), key.sizes().slice(0, key.dim() - 2));
  weights.insert(weights.end(), {query.size(-2), key.size(-2)});
  if (at::infer_size(weights, mask.sizes()) != weights)
    Session::current()->refuse("an attention mask has more dims or rows than the weights",
                               Code::kProgramError);
}

// PyTorch has a kernel of its own where no gradient is wanted: it takes fewer dtypes, and its
// result is contiguous.
void max_pool1d(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                torch::jit::Stack* stack) {
  c10::IValue& input = (*stack)[stack->size() - handle.schema().arguments().size()];
  if (input.isTensor()) {
    const at::Tensor& self = input.toTensor();
    if (at::isIntegralType(self.scalar_type(), /*includeBool=*/true))
      Session::current()->refuse("max_pool1d takes no whole numbers", Code::kProgramError);
    if (!(self.requires_grad() && at::GradMode::is_enabled())) input = self.contiguous();
  }
  note_call(handle, keys, stack);
}

void attention(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
               torch::jit::Stack* stack) {
  const std::size_t base = stack->size() - handle.schema().arguments().size();
  const auto at = [&](std::size_t i) -> const c10::IValue& { return (*stack)[base + i]; };
  const at::Tensor query = at(0).toTensor(), key = at(1).toTensor(), value = at(2).toTensor();
  const OptionalTensor mask = at(3).toOptional<at::Tensor>();
  if (is_given(mask) && !at(7).toBool()) check_mask(query, key, *mask);
  if (!is_of_pytorch(query.device())) return note_call(handle, keys, stack);
  const double dropout = at(4).toDouble();
  const bool is_causal = at(5).toBool(), grouped = at(7).toBool();
  const auto scale = at(6).toOptional<double>();
  const std::int64_t choice =
      dropout > 0 ? static_cast<std::int64_t>(at::SDPBackend::math)
                  : at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, is_causal,
                                                      scale, grouped);
  at::Tensor result;
  if (choice != static_cast<std::int64_t>(at::SDPBackend::flash_attention)) {
    result = std::get<0>(at::_scaled_dot_product_attention_math(
        query, key, value, mask, dropout, is_causal, std::nullopt, scale, grouped));
  } else {
    // The operator takes masks that are added.
    OptionalTensor added = mask;
    if (is_given(mask) && mask->scalar_type() == at::kBool)
      added = at::zeros_like(*mask, query.options())
                  .masked_fill(mask->logical_not(), -std::numeric_limits<double>::infinity());
    result = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout,
                                                                         is_causal, added, scale));
  }
  stack->resize(base);
  stack->emplace_back(std::move(result));
}

// Whether PyTorch draws numbers in the order of memory: not on Intel's CPUs, where a library draws.
bool draws_as_memory_lies() {
  constexpr std::int64_t kRows = 8, kColumns = 16;
  const auto draw = [](at::Tensor into) {
    return into.bernoulli_(0.5, at::detail::createCPUGenerator(/*seed_val=*/0));
  };
  const at::Tensor turned = draw(at::empty({kColumns, kRows}).t());
  return !turned.equal(draw(at::empty({kRows, kColumns})));
}
bool g_draws_as_memory_lies = false;  // written once, before the first recording

// What bernoulli_ draws into a tensor that lies as `like`; bernoulli itself draws into a dense one.
at::Tensor drawn_like(const at::Tensor& like, double probability) {
  if (!g_draws_as_memory_lies || like.is_contiguous()) return at::bernoulli(like, probability);
  std::vector<std::int64_t> order(static_cast<std::size_t>(like.dim())), back(order.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::int64_t d) { return like.stride(d); });
  for (std::size_t i = 0; i < order.size(); ++i)
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  return at::bernoulli(like.permute(order), probability).permute(back);
}

at::Tensor& bernoulli_(at::Tensor& self, double probability,
                       std::optional<at::Generator> generator) {
  if (generator || !g_draws_as_memory_lies || self.is_contiguous()) {
    const c10::impl::ExcludeDispatchKeyGuard as_pytorch(kDecomposeKey);
    return self.bernoulli_(probability, std::move(generator));
  }
  return self.copy_(drawn_like(self, probability));
}

// True with that probability, element by element: made of one drawn number where the tensor is, so
// that no random numbers cross to a device, and the backward may compute the mask again. The
// mixer `moremur` (Pelle Evensen 2019) over the elements' numbers, with logical shifts: floors of
// quotients, without the sign. The probability is rounded down to 32 bits.
at::Tensor mask_of_one_draw(const at::Tensor& like, double probability) {
  const at::TensorOptions as_long = like.options().dtype(at::kLong);
  const at::Tensor seed = at::randint(std::numeric_limits<std::int64_t>::max(), {}, as_long);
  at::Tensor bits = at::arange(like.numel(), as_long).view(like.sizes()).add(seed);
  const auto times = [&](std::int64_t factor) { bits = bits.mul(factor); };
  const auto shifted = [&](int by) {
    return bits.floor_divide(std::int64_t{1} << by).bitwise_and((std::int64_t{1} << (64 - by)) - 1);
  };
  bits = bits.bitwise_xor(shifted(27));
  times(0x3c79ac492ba7b653);
  bits = bits.bitwise_xor(shifted(33));
  times(0x1c69b3f74ac4ae35);
  bits = bits.bitwise_xor(shifted(27));
  constexpr double kRange = 4294967296.0;  // 2^32: the upper half
  return shifted(32).lt(static_cast<std::int64_t>(probability * kRange));
}

// Functionalization adds what was written through an expanded view to its base, rounded. One that
// repeats nothing is a view without it.
void expand(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const std::size_t base = stack->size() - handle.schema().arguments().size();
  const at::Tensor self = (*stack)[base].toTensor();
  const std::vector<std::int64_t> sizes = (*stack)[base + 1].toIntVector();
  const std::size_t rank = static_cast<std::size_t>(self.dim());
  const std::size_t added = sizes.size() - std::min(rank, sizes.size());
  bool repeats = sizes.size() < rank;
  for (std::size_t d = 0; d < sizes.size() && !repeats; ++d)
    repeats = d < added ? sizes[d] != 1
                        : sizes[d] != -1 && sizes[d] != self.size(static_cast<int>(d - added));
  if (repeats) return note_call(handle, keys, stack);
  at::Tensor view = at::alias(self);
  for (std::size_t d = 0; d < added; ++d) view = view.unsqueeze(0);
  stack->resize(base);
  stack->emplace_back(std::move(view));
}

// One operator a tensor, as PyTorch runs those over lists where a device has no kernel for them.
void each_alone(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  handle.callBoxedForDispatchKey(DispatchKey::CompositeExplicitAutograd, *stack);
}

void take_lists_apart(torch::Library& library) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::_foreach_") || name.name.ends_with("_out") ||
        name.overload_name.ends_with("out"))
      continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (handle && handle->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd))
      library.impl(toString(name).c_str(),
                   torch::CppFunction::makeFromBoxedFunction<&each_alone>());
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double probability,
                                           std::optional<bool> train) {
  if (input.numel() == 0) return {input.clone(), at::empty_like(input)};  // as PyTorch: no bools
  const at::TensorOptions as_mask = input.options().dtype(at::kBool);
  if (train && !*train) return {input.clone(), at::ones_like(input, as_mask)};
  // PyTorch scales in place.
  TORCH_CHECK(c10::canCast(at::kFloat, input.scalar_type()),
              "result type Float can't be cast to the desired output type ", input.scalar_type());
  const double kept = 1.0 - probability;
  const at::Tensor mask = is_of_pytorch(input.device())
                              ? mask_of_one_draw(input, kept)
                              : drawn_like(at::empty_like(input, as_mask), kept);
  return {input.mul(mask).mul(kept == 0 ? 0.0 : 1.0 / kept), mask};
}

namespace {
// Chunks that there are not would be read.
void check_gates(const at::Tensor& gates, const at::Tensor& state, std::int64_t count) {
  TORCH_CHECK(gates.dim() == 2 && state.dim() == 2 && gates.size(1) == count * state.size(1),
              "expected gates of ", count, " times the state's size, but got ", gates.sizes(),
              " and ", state.sizes());
}
}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates,
                                                         const at::Tensor& hidden_gates,
                                                         const at::Tensor& cell,
                                                         const OptionalTensor& input_bias,
                                                         const OptionalTensor& hidden_bias) {
  if (input_gates.is_cpu()) {  // which has none, and says so
    const c10::impl::ExcludeDispatchKeyGuard as_pytorch(kDecomposeKey);
    return at::_thnn_fused_lstm_cell(input_gates, hidden_gates, cell, input_bias, hidden_bias);
  }
  check_gates(input_gates, cell, 4);
  const auto gates = (plus(input_gates, input_bias) + plus(hidden_gates, hidden_bias)).chunk(4, 1);
  const at::Tensor next = gates[1].sigmoid() * cell + gates[0].sigmoid() * gates[2].tanh();
  const at::Tensor hidden = gates[3].sigmoid() * next.tanh();
  return {hidden, next, at::empty({0}, input_gates.options())};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates,
                                            const at::Tensor& hidden_gates,
                                            const at::Tensor& hidden,
                                            const OptionalTensor& input_bias,
                                            const OptionalTensor& hidden_bias) {
  if (input_gates.is_cpu()) {
    const c10::impl::ExcludeDispatchKeyGuard as_pytorch(kDecomposeKey);
    return at::_thnn_fused_gru_cell(input_gates, hidden_gates, hidden, input_bias, hidden_bias);
  }
  check_gates(input_gates, hidden, 3);
  check_gates(hidden_gates, hidden, 3);
  const auto input = plus(input_gates, input_bias).chunk(3, 1);
  const auto state = plus(hidden_gates, hidden_bias).chunk(3, 1);
  const at::Tensor reset = (input[0] + state[0]).sigmoid();
  const at::Tensor update = (input[1] + state[1]).sigmoid();
  const at::Tensor fresh = (input[2] + reset * state[2]).tanh();
  return {(hidden - fresh) * update + fresh, at::empty({0}, input_gates.options())};
}

void register_decompositions(torch::Library& library) {
  library.impl("native_batch_norm", TORCH_FN(batch_norm));
  library.impl("mkldnn_rnn_layer", TORCH_FN(rnn_layer));
  library.impl("native_dropout", TORCH_FN(dropout));
  library.impl("bernoulli_.float", TORCH_FN(bernoulli_));
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  library.impl("scaled_dot_product_attention",
               torch::CppFunction::makeFromBoxedFunction<&attention>());
  for (const char* name : {"batch_norm", "lstm.input", "lstm.data", "gru.input", "gru.data",
                           "rnn_tanh.input", "rnn_tanh.data", "rnn_relu.input", "rnn_relu.data"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&without_library>());
  library.impl("max_pool1d", torch::CppFunction::makeFromBoxedFunction<&max_pool1d>());
  library.impl("linalg_eigvalsh", TORCH_FN(eigenvalues));
  library.impl("linalg_eigvals", TORCH_FN(general_eigenvalues));
  library.impl("linalg_svdvals", TORCH_FN(singular_values));
  for (const char* name : {"empty.memory_format", "empty_strided", "empty_like", "new_empty",
                           "new_empty_strided", "empty_permuted"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&allocate>());
  take_lists_apart(library);
  library.impl("expand", torch::CppFunction::makeFromBoxedFunction<&expand>());
  g_draws_as_memory_lies = draws_as_memory_lies();
}

}  // namespace backplane::record
