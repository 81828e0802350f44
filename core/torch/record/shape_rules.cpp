#include "core/torch/record/shape_rules.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Reduction.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/index_meta_dispatch.h>

#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/torch/record/value_tensor.h"

namespace backplane::record {

namespace {

using torch::jit::Stack;
using Dims = std::vector<std::int64_t>;

// The last `count` entries of a stack: the arguments of one call.
class Arguments {
 public:
  Arguments(Stack& stack, std::size_t count) : stack_(stack), base_(stack.size() - count) {}

  const c10::IValue& at(std::size_t i) const { return stack_[base_ + i]; }
  at::Tensor tensor(std::size_t i) const {
    return at(i).isTensor() ? at(i).toTensor() : at::Tensor();
  }
  bool flag(std::size_t i, std::size_t index) const { return at(i).toBoolList()[index]; }

  template <class... Tensors>
  bool reply(Tensors&&... results) {
    stack_.resize(base_);
    (stack_.emplace_back(std::forward<Tensors>(results)), ...);
    return true;
  }

 private:
  Stack& stack_;
  std::size_t base_;
};

at::Tensor strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  return at::detail::empty_strided_meta(sizes, strides, dtype);
}

at::Tensor dense(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::detail::empty_meta(sizes, dtype);
}

at::Tensor dense(at::IntArrayRef sizes, at::ScalarType dtype, at::MemoryFormat format) {
  return at::detail::empty_meta(sizes, dtype, std::nullopt, std::nullopt, std::nullopt, format);
}

at::Tensor dense_like(const at::Tensor& t) { return dense(t.sizes(), t.scalar_type()); }

// As PyTorch's empty_like: strides kept where they are dense, else made so in the same order.
at::Tensor like(const at::Tensor& t) {
  if (t.is_non_overlapping_and_dense()) return strided(t.sizes(), t.strides(), t.scalar_type());
  return strided(t.sizes(), at::infer_dense_strides(t.sizes(), t.strides()), t.scalar_type());
}

// Strides of single elements stay as they are, and may look like another format's.
at::Tensor contiguous(const at::Tensor& t) { return t.is_contiguous() ? t : dense_like(t); }

at::Tensor in_format_of(const at::Tensor& t) {
  return dense(t.sizes(), t.scalar_type(), t.suggest_memory_format());
}

// Statistics of reduced-precision data with weights in float are float.
at::ScalarType statistics_type(const at::Tensor& data, const at::Tensor& weight) {
  const bool mixed = at::isReducedFloatingType(data.scalar_type()) && weight.defined() &&
                     weight.scalar_type() == at::kFloat;
  return mixed ? at::kFloat : data.scalar_type();
}

bool same_as_first(Stack& stack, std::size_t count) {
  Arguments in(stack, count);
  return in.reply(like(in.tensor(0)));
}

bool relu(Stack& stack) { return same_as_first(stack, 1); }
bool hardswish(Stack& stack) { return same_as_first(stack, 1); }
bool hardtanh(Stack& stack) { return same_as_first(stack, 3); }  // self, min, max

template <std::size_t kCount>
bool gradient_of_elements(Stack& stack) {  // grad, self, ...
  Arguments in(stack, kCount);
  if (in.tensor(0).scalar_type() != in.tensor(1).scalar_type()) return false;
  return in.reply(elementwise(std::array{in.tensor(0), in.tensor(1)}, in.tensor(0).scalar_type()));
}

bool test_of_elements(Stack& stack) {
  Arguments in(stack, 1);
  return in.reply(elementwise(std::array{in.tensor(0)}, at::kBool));
}

bool test_of_pairs(Stack& stack) {
  Arguments in(stack, 2);
  return in.reply(elementwise(std::array{in.tensor(0), in.tensor(1)}, at::kBool));
}

bool absolute(Stack& stack) {
  Arguments in(stack, 1);
  return in.reply(
      elementwise(std::array{in.tensor(0)}, c10::toRealValueType(in.tensor(0).scalar_type())));
}

bool complex(Stack& stack) {  // two parts
  Arguments in(stack, 2);
  const at::ScalarType dtype = in.tensor(0).scalar_type();
  if (dtype != in.tensor(1).scalar_type() || !at::isFloatingType(dtype)) return false;
  return in.reply(elementwise(std::array{in.tensor(0), in.tensor(1)}, c10::toComplexType(dtype)));
}

bool pixel_unshuffle(Stack& stack) {  // self, factor
  Arguments in(stack, 2);
  const at::Tensor self = in.tensor(0);
  const std::int64_t factor = in.at(1).toInt();
  const at::MemoryFormat format = self.suggest_memory_format();
  if (self.dim() != 4 || format != at::MemoryFormat::ChannelsLast || factor <= 0) return false;
  if (self.size(2) % factor != 0 || self.size(3) % factor != 0) return false;
  return in.reply(dense(
      {self.size(0), self.size(1) * factor * factor, self.size(2) / factor, self.size(3) / factor},
      self.scalar_type(), format));
}

// PyTorch's Python function looks at self alone, its kernel at how the indices lie as well.
bool index(Stack& stack) {  // self, indices
  Arguments in(stack, 2);
  const auto indices = in.at(1).toOptionalTensorList();
  for (const std::optional<at::Tensor>& one : indices)
    if (one && one->defined() && one->scalar_type() != at::kLong && one->scalar_type() != at::kInt)
      return false;  // masks: the size is in their values
  return in.reply(at::meta::index(in.tensor(0), indices));
}

bool soft_margin_loss(Stack& stack) {  // self, target, reduction
  Arguments in(stack, 3);
  const at::Tensor self = in.tensor(0);
  return in.at(2).toInt() == at::Reduction::None &&
         at::infer_size(self.sizes(), in.tensor(1).sizes()) == self.sizes() &&
         in.reply(elementwise(std::array{self}, self.scalar_type()));
}

bool max_unpool2d(Stack& stack) {  // self, indices, output_size
  Arguments in(stack, 3);
  const at::Tensor self = in.tensor(0);
  const Dims wanted = in.at(2).toIntVector();
  if (self.dim() != 4 || wanted.size() != 2 || self.sizes() != in.tensor(1).sizes()) return false;
  return in.reply(dense({self.size(0), self.size(1), wanted[0], wanted[1]}, self.scalar_type(),
                        self.suggest_memory_format()));
}

bool normal(Stack& stack) {  // mean, std, generator
  Arguments in(stack, 3);
  const at::Tensor mean = in.tensor(0);
  return in.reply(dense(at::infer_size(mean.sizes(), in.tensor(1).sizes()), mean.scalar_type()));
}

// Pictures, or one volume, which the kernels take for pictures where it lies as those do: self and
// pads, of the last dim first.
template <bool kReflects, std::size_t kPads>
bool pad_pictures(Stack& stack) {
  Arguments in(stack, 2);
  const at::Tensor self = in.tensor(0);
  const Dims pads = in.at(1).toIntVector();
  const at::MemoryFormat format = self.suggest_memory_format();
  if (self.dim() != 4 || pads.size() != kPads || format != at::MemoryFormat::ChannelsLast)
    return false;
  Dims sizes = self.sizes().vec();
  for (std::size_t i = 0; i < pads.size(); ++i) {
    const std::size_t dim = sizes.size() - 1 - i / 2;
    const std::int64_t size = self.size(static_cast<std::int64_t>(dim));
    if (size == 0 || pads[i] < 0 || (kReflects && pads[i] >= size)) return false;
    sizes[dim] += pads[i];
  }
  return in.reply(dense(sizes, self.scalar_type(), format));
}

bool rrelu_with_noise(Stack& stack) {  // self, noise, lower, upper, training, generator
  Arguments in(stack, 6);
  return in.reply(dense_like(in.tensor(0)), like(in.tensor(1)));
}

bool cross_entropy_of_bits(Stack& stack) {  // self, target, weight, reduction
  Arguments in(stack, 4);
  return in.at(3).toInt() == at::Reduction::None && in.reply(like(in.tensor(0)));
}

bool channel_shuffle(Stack& stack) {  // self, groups
  Arguments in(stack, 2);
  return in.reply(in_format_of(in.tensor(0)));
}

// Into new memory, one element after the other.
template <std::size_t kCount>
bool dense_as_first(Stack& stack) {
  Arguments in(stack, kCount);
  return in.reply(dense_like(in.tensor(0)));
}

bool binomial(Stack& stack) {  // count, prob, generator
  Arguments in(stack, 3);
  const at::Tensor count = in.tensor(0);
  return in.reply(dense(at::infer_size(count.sizes(), in.tensor(1).sizes()), count.scalar_type()));
}

// By way of complex numbers, into memory that had no strides.
bool angle(Stack& stack) {
  Arguments in(stack, 1);
  const at::Tensor self = in.tensor(0);
  return self.is_complex() &&
         in.reply(dense(self.sizes(), c10::toRealValueType(self.scalar_type())));
}

bool log_sigmoid(Stack& stack) {
  Arguments in(stack, 1);
  const at::Tensor made = dense_like(in.tensor(0));
  return in.reply(made, dense_like(made));
}

bool nonzero_static(Stack& stack) {  // self, size, fill_value
  Arguments in(stack, 3);
  const std::int64_t size = in.at(1).toInt();
  return size >= 0 && in.reply(dense({size, in.tensor(0).dim()}, at::kLong));
}

bool dropout_backward(Stack& stack) {  // grad, mask, scale
  Arguments in(stack, 3);
  const at::ScalarType dtype = in.tensor(0).scalar_type();
  const bool is_integral = at::isIntegralType(dtype, /*includeBool=*/true);
  const at::ScalarType real = c10::typeMetaToScalarType(at::get_default_dtype());
  return in.reply(elementwise(std::array{in.tensor(0), in.tensor(1)}, is_integral ? real : dtype));
}

bool extremum_of_all(Stack& stack) {
  Arguments in(stack, 1);
  return in.tensor(0).numel() > 0 && in.reply(dense({}, in.tensor(0).scalar_type()));
}

// Sizes after a reduction over `dims`, all where that is none or empty.
Dims reduced_sizes(const at::Tensor& self, const c10::IValue& dims, bool keep) {
  const std::int64_t rank = self.dim();
  std::vector<bool> reduced(static_cast<std::size_t>(rank), true);
  if (dims.isIntList() && !dims.toIntVector().empty()) {
    reduced.assign(static_cast<std::size_t>(rank), false);
    for (const std::int64_t d : dims.toIntVector())
      reduced[static_cast<std::size_t>(at::maybe_wrap_dim(d, rank))] = true;
  }
  Dims sizes;
  for (std::int64_t d = 0; d < rank; ++d) {
    if (!reduced[static_cast<std::size_t>(d)])
      sizes.push_back(self.size(d));
    else if (keep)
      sizes.push_back(1);
  }
  return sizes;
}

bool variance(Stack& stack) {  // self, dim, correction, keepdim
  Arguments in(stack, 4);
  const at::Tensor self = in.tensor(0);
  if (self.dim() == 0 || self.is_complex()) return false;
  return in.reply(dense(reduced_sizes(self, in.at(1), in.at(3).toBool()), self.scalar_type()));
}

bool variance_and_mean(Stack& stack) {
  Arguments in(stack, 4);
  const at::Tensor self = in.tensor(0);
  if (self.dim() == 0 || self.is_complex()) return false;
  const Dims sizes = reduced_sizes(self, in.at(1), in.at(3).toBool());
  return in.reply(dense(sizes, self.scalar_type()), dense(sizes, self.scalar_type()));
}

bool index_select(Stack& stack) {  // self, dim, index
  Arguments in(stack, 3);
  const at::Tensor self = in.tensor(0), index = in.tensor(2);
  if (self.dim() == 0 || index.dim() > 1) return false;
  Dims sizes = self.sizes().vec();
  sizes[static_cast<std::size_t>(at::maybe_wrap_dim(in.at(1).toInt(), self.dim()))] = index.numel();
  return in.reply(dense(sizes, self.scalar_type()));
}

// data, reduce, lengths, indices, offsets, axis, unsafe, initial
bool segment_reduce(Stack& stack) {
  Arguments in(stack, 8);
  const at::Tensor data = in.tensor(0), lengths = in.tensor(2), offsets = in.tensor(4);
  if (data.dim() == 0 || lengths.defined() == offsets.defined()) return false;
  const std::int64_t axis = at::maybe_wrap_dim(in.at(5).toInt(), data.dim());
  const at::Tensor parts = lengths.defined() ? lengths : offsets;
  if (axis >= parts.dim()) return false;
  Dims sizes = data.sizes().vec();
  sizes[static_cast<std::size_t>(axis)] = parts.size(axis) - (lengths.defined() ? 0 : 1);
  return in.reply(dense(sizes, data.scalar_type()));
}

bool segment_reduce_backward(Stack& stack) {  // grad, output, data, reduce, lengths, offsets, …
  Arguments in(stack, 8);
  return in.reply(dense_like(in.tensor(2)));
}

// Two parts put together the other way round.
at::Tensor rolled(const at::Tensor& self, std::int64_t shift, std::int64_t dim) {
  const std::int64_t size = self.size(dim), start = ((-shift) % size + size) % size;
  const at::MemoryFormat first = self.narrow(dim, start, size - start).suggest_memory_format();
  const at::MemoryFormat second = self.narrow(dim, 0, start).suggest_memory_format();
  return dense(self.sizes(), self.scalar_type(),
               first == second ? first : at::MemoryFormat::Contiguous);
}

bool roll(Stack& stack) {  // self, shifts, dims
  Arguments in(stack, 3);
  const at::Tensor self = in.tensor(0);
  const std::size_t shifts = in.at(1).toDimVector().size(), dims = in.at(2).toDimVector().size();
  TORCH_CHECK(self.numel() == 0 || shifts > 0, "`shifts` required");
  TORCH_CHECK(self.numel() == 0 || shifts == dims || (dims == 0 && shifts == 1),
              "shifts and dimensions must align. shifts: ", shifts, ", dims:", dims);
  for (const std::int64_t dim : in.at(2).toDimVector())
    (void)at::maybe_wrap_dim(dim, self.dim(), /*wrap_scalar=*/self.numel() == 0);
  if (self.numel() == 0) return in.reply(dense_like(self));
  at::Tensor result = dims == 0 ? dense_like(self) : self;  // without dims as one row
  for (std::size_t i = 0; i < dims; ++i)
    result = rolled(result, in.at(1).toDimVector()[i], in.at(2).toDimVector()[i]);
  return in.reply(std::move(result));
}

bool nll_loss2d(Stack& stack) {  // self, target, weight, reduction, ignore_index
  Arguments in(stack, 5);
  const at::Tensor self = in.tensor(0), target = in.tensor(1);
  if (self.dim() != 4 || target.dim() != 3) return false;
  const at::ScalarType type = self.scalar_type();
  const bool reduces = in.at(3).toInt() != at::Reduction::None;
  return in.reply(reduces ? dense({}, type) : dense(target.sizes(), type), dense({}, type));
}

bool nll_loss2d_backward(Stack& stack) {  // grad, self, target, weight, reduction, ignore, total
  Arguments in(stack, 7);
  return in.reply(dense_like(in.tensor(1)));
}

bool mse_loss_backward(Stack& stack) {  // grad, input, target, reduction
  Arguments in(stack, 4);
  const at::Tensor grad = in.tensor(0), input = in.tensor(1), target = in.tensor(2);
  if (input.sizes() == target.sizes()) return in.reply(dense_like(input));
  // The kernel makes its result as large as that of the loss.
  return in.reply(elementwise(std::array{input, target, grad}, input.scalar_type()));
}

bool layer_norm(Stack& stack) {  // input, normalized_shape, weight, bias, eps
  Arguments in(stack, 5);
  const at::Tensor input = in.tensor(0);
  const Dims normalized = in.at(1).toIntVector();
  (void)at::native::_check_layer_norm_inputs(input, normalized, in.tensor(2), in.tensor(3));
  Dims sizes = input.sizes().vec();
  for (std::size_t i = sizes.size() - normalized.size(); i < sizes.size(); ++i) sizes[i] = 1;
  const at::ScalarType type = statistics_type(input, in.tensor(2));
  return in.reply(dense_like(input), dense(sizes, type), dense(sizes, type));
}

bool layer_norm_backward(Stack& stack) {  // grad, input, shape, mean, rstd, weight, bias, mask
  Arguments in(stack, 8);
  const at::Tensor input = in.tensor(1), weight = in.tensor(5);
  const Dims shape = in.at(2).toIntVector();
  const auto of_weight = [&] {
    return dense(shape, weight.defined() ? weight.scalar_type() : input.scalar_type());
  };
  return in.reply(in.flag(7, 0) ? dense_like(input) : at::Tensor(),
                  in.flag(7, 1) ? of_weight() : at::Tensor(),
                  in.flag(7, 2) ? of_weight() : at::Tensor());
}

bool group_norm(Stack& stack) {  // input, weight, bias, N, C, HxW, group, eps
  Arguments in(stack, 8);
  const at::Tensor input = in.tensor(0);
  const Dims sizes{in.at(3).toInt(), in.at(6).toInt()};
  const at::ScalarType type = statistics_type(input, in.tensor(1));
  return in.reply(in_format_of(input), dense(sizes, type), dense(sizes, type));
}

bool group_norm_backward(Stack& stack) {  // grad, input, mean, rstd, weight, N, C, HxW, group, mask
  Arguments in(stack, 10);
  const at::Tensor input = in.tensor(1), weight = in.tensor(4);
  const auto of_weight = [&] {
    return weight.defined() ? dense_like(weight) : dense({in.at(6).toInt()}, input.scalar_type());
  };
  return in.reply(in.flag(9, 0) ? in_format_of(input) : at::Tensor(),
                  in.flag(9, 1) ? of_weight() : at::Tensor(),
                  in.flag(9, 2) ? of_weight() : at::Tensor());
}

// Of one picture, the stride of the first dim says nothing to the kernel that takes what is dense.
at::Tensor normalized(const at::Tensor& input, std::initializer_list<at::Tensor> channels) {
  const bool is_last =
      !input.is_contiguous() && input.is_contiguous(at::MemoryFormat::ChannelsLast) &&
      std::ranges::all_of(
          channels, [](const at::Tensor& one) { return !one.defined() || one.is_contiguous(); });
  return is_last ? dense(input.sizes(), input.scalar_type(), at::MemoryFormat::ChannelsLast)
                 : in_format_of(input);
}

// input, weight, bias, running_mean, running_var, training, momentum, eps
bool batch_norm_functional(Stack& stack) {
  Arguments in(stack, 8);
  const at::Tensor input = in.tensor(0), mean = in.tensor(3), variance = in.tensor(4);
  const Dims saved{in.at(5).toBool() ? input.size(1) : 0};
  const at::ScalarType type = statistics_type(input, in.tensor(1));
  return in.reply(normalized(input, {in.tensor(1), in.tensor(2)}), dense(saved, type),
                  dense(saved, type), dense_like(mean), dense_like(variance));
}

// input, weight, bias, running_mean, running_var, momentum, eps; the fourth result is workspace
bool batch_norm_with_update(Stack& stack) {
  Arguments in(stack, 7);
  const at::Tensor input = in.tensor(0), mean = in.tensor(3), variance = in.tensor(4);
  const at::ScalarType type = statistics_type(input, in.tensor(1));
  return in.reply(normalized(input, {in.tensor(1), in.tensor(2)}), dense({input.size(1)}, type),
                  dense({input.size(1)}, type), dense({0}, at::kByte), dense_like(mean),
                  dense_like(variance));
}

bool batch_norm_no_training(Stack& stack) {  // input, weight, bias, mean, var, momentum, eps
  Arguments in(stack, 7);
  const at::Tensor input = in.tensor(0);
  const at::ScalarType type = statistics_type(input, in.tensor(1));
  return in.reply(normalized(input, {in.tensor(1), in.tensor(2), in.tensor(3), in.tensor(4)}),
                  dense({0}, type), dense({0}, type));
}

bool batch_norm_no_stats(Stack& stack) {  // input, weight, bias, training, momentum, eps
  Arguments in(stack, 6);
  const at::Tensor input = in.tensor(0);
  const at::ScalarType type = statistics_type(input, in.tensor(1));
  return in.reply(normalized(input, {in.tensor(1), in.tensor(2)}), dense({input.size(1)}, type),
                  dense({input.size(1)}, type));
}

// grad, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask
bool batch_norm_backward(Stack& stack) {
  Arguments in(stack, 10);
  const at::Tensor input = in.tensor(1), weight = in.tensor(2);
  const auto of_weight = [&] {
    return dense({input.size(1)}, weight.defined() ? weight.scalar_type() : input.scalar_type());
  };
  return in.reply(in.flag(9, 0) ? in_format_of(input) : at::Tensor(),
                  in.flag(9, 1) ? of_weight() : at::Tensor(),
                  in.flag(9, 2) ? of_weight() : at::Tensor());
}

bool embedding_backward(Stack& stack) {  // grad, indices, num_weights, padding_idx, scale
  Arguments in(stack, 5);
  const at::Tensor grad = in.tensor(0);
  return in.reply(dense({in.at(2).toInt(), grad.size(-1)}, grad.scalar_type()));
}

bool where(Stack& stack) {  // condition, self, other
  Arguments in(stack, 3);
  const at::Tensor self = in.tensor(1), other = in.tensor(2);
  const at::ScalarType type = at::result_type(self, other);
  return in.reply(elementwise(std::array{in.tensor(0), self.to(type), other.to(type)}, type));
}

// query, key, value, dropout_p, is_causal, attn_mask, scale
bool flash_attention_for_cpu(Stack& stack) {
  Arguments in(stack, 7);
  const at::Tensor query = in.tensor(0);
  const at::ScalarType type =
      at::isReducedFloatingType(query.scalar_type()) ? at::kFloat : query.scalar_type();
  return in.reply(like(query),
                  dense({query.size(0), query.size(2), query.size(1)}, type).transpose(1, 2));
}

// grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale
bool flash_attention_for_cpu_backward(Stack& stack) {
  Arguments in(stack, 10);
  const auto gradient = [&](std::size_t i) {
    const at::Tensor t = in.tensor(i);
    return dense({t.size(0), t.size(2), t.size(1), t.size(3)}, t.scalar_type()).transpose(1, 2);
  };
  at::Tensor query = gradient(1), key = gradient(2), value = gradient(3);
  return in.reply(std::move(query), std::move(key), std::move(value));
}

// The arguments that choose a convolution's implementation, as tensors that claim to be on the CPU.
class Convolution {
 public:
  // `first`: position of stride; input, weight and bias sizes come before it.
  Convolution(const Arguments& in, const at::Tensor& input, const at::Tensor& weight,
              std::size_t first, const c10::IValue& bias_sizes)
      : stride_(in.at(first).toIntVector()),
        padding_(in.at(first + 1).toIntVector()),
        dilation_(in.at(first + 2).toIntVector()),
        output_padding_(in.at(first + 4).toIntVector()),
        transposed_(in.at(first + 3).toBool()),
        groups_(in.at(first + 5).toInt()),
        is_line_(weight.dim() == 3),
        input_(on_cpu(is_line_ ? contiguous(input).unsqueeze(2) : input)),
        weight_(on_cpu(is_line_ ? weight.unsqueeze(2) : weight)) {
    // PyTorch takes one dimension for a picture of one row.
    if (is_line_) {
      for (Dims* each : {&stride_, &dilation_}) each->insert(each->begin(), 1);
      for (Dims* each : {&padding_, &output_padding_}) each->insert(each->begin(), 0);
    }
    if (bias_sizes.isTensor() && bias_sizes.toTensor().defined()) {
      bias_ = on_cpu(bias_sizes.toTensor());
      bias_sizes_ = bias_->sizes().vec();
    } else if (bias_sizes.isIntList()) {
      bias_sizes_ = bias_sizes.toIntVector();
    }
  }

  bool is_transposed() const { return transposed_; }

  Dims output_sizes() const {
    const std::size_t spatial = static_cast<std::size_t>(input_.dim()) - 2;
    const auto wide = [&](Dims dims) {
      if (dims.size() == 1) dims.resize(spatial, dims[0]);
      return dims;
    };
    if (transposed_)
      return at::native::conv_input_size(input_.sizes(), weight_.sizes(), wide(padding_),
                                         wide(output_padding_), wide(stride_), wide(dilation_),
                                         groups_);
    return at::native::conv_output_size(input_.sizes(), weight_.sizes(), wide(padding_),
                                        wide(stride_), wide(dilation_));
  }

  // A tensor of such sizes, in the layout that the implementation gives.
  at::Tensor laid(Dims sizes, at::ScalarType dtype, at::MemoryFormat format) const {
    if (is_line_ && sizes.size() == 3) sizes.insert(sizes.begin() + 2, 1);
    const at::Tensor made = dense(sizes, dtype, format);
    return is_line_ ? made.squeeze(2) : made;
  }

  at::MemoryFormat memory_format() const {
    const auto backend = at::native::select_conv_backend(
        input_, weight_, bias_, symbolic(stride_), symbolic(padding_), symbolic(dilation_),
        transposed_, symbolic(output_padding_), groups_,
        bias_sizes_ ? at::OptionalSymIntArrayRef(symbolic(*bias_sizes_)) : std::nullopt);
    return at::native::_determine_backend_memory_format(input_, weight_, backend);
  }

 private:
  static at::Tensor on_cpu(const at::Tensor& meta) {
    return at::Tensor(c10::make_intrusive<ValueTensor>(meta, c10::kCPU, 0, kNoValue));
  }
  static c10::SymIntArrayRef symbolic(const Dims& dims) {
    return c10::fromIntArrayRefKnownNonNegative(dims);
  }

  Dims stride_, padding_, dilation_, output_padding_;
  bool transposed_;
  std::int64_t groups_;
  bool is_line_;
  at::Tensor input_, weight_;
  std::optional<at::Tensor> bias_;
  std::optional<Dims> bias_sizes_;
};

// Leaves the odd ones, and those whose checks fail, to PyTorch.
bool is_plain_convolution(const at::Tensor& input, const at::Tensor& weight) {
  return input.dim() == weight.dim() && input.dim() >= 3 && input.dim() <= 5 && input.numel() > 0 &&
         weight.numel() > 0 && !input.is_complex();
}

// input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, ...
template <std::size_t kCount>
bool convolution(Stack& stack) {
  Arguments in(stack, kCount);
  const at::Tensor input = in.tensor(0), weight = in.tensor(1);
  if (!is_plain_convolution(input, weight)) return false;
  const Convolution made(in, input, weight, 3, in.at(2));
  const std::int64_t groups = in.at(8).toInt();
  const std::int64_t channels = made.is_transposed() ? weight.size(0) : weight.size(1) * groups;
  if (channels != input.size(1)) return false;
  const Dims sizes = made.output_sizes();
  for (const std::int64_t size : sizes)
    if (size <= 0) return false;
  return in.reply(made.laid(sizes, input.scalar_type(), made.memory_format()));
}

// grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
// mask
bool convolution_backward(Stack& stack) {
  Arguments in(stack, 11);
  const at::Tensor grad = in.tensor(0), input = in.tensor(1), weight = in.tensor(2);
  if (!is_plain_convolution(input, weight)) return false;
  const Convolution made(in, input, weight, 4, in.at(3));
  const at::MemoryFormat format = made.memory_format();
  const auto gradient = [&](const at::Tensor& t) {
    return made.laid(t.sizes().vec(), t.scalar_type(), format);
  };
  return in.reply(in.flag(10, 0) ? gradient(input) : at::Tensor(),
                  in.flag(10, 1) ? gradient(weight) : at::Tensor(),
                  in.flag(10, 2) ? dense({grad.size(1)}, grad.scalar_type()) : at::Tensor());
}

const std::unordered_map<std::string_view, ShapeRule>& rules() {
  static const auto& table = *new std::unordered_map<std::string_view, ShapeRule>{
      {"aten.relu", relu},
      {"aten.hardswish", hardswish},
      {"aten.hardtanh", hardtanh},
      {"aten.hardswish_backward", gradient_of_elements<2>},
      {"aten.hardtanh_backward", gradient_of_elements<4>},
      {"aten.isnan", test_of_elements},
      {"aten.isinf", test_of_elements},
      {"aten.logical_not", test_of_elements},
      {"aten.logical_and", test_of_pairs},
      {"aten.logical_or", test_of_pairs},
      {"aten.logical_xor", test_of_pairs},
      {"aten.abs", absolute},
      {"aten.angle", angle},
      {"aten.log_sigmoid_forward", log_sigmoid},
      {"aten.nonzero_static", nonzero_static},
      {"aten.binary_cross_entropy", cross_entropy_of_bits},
      {"aten.channel_shuffle", channel_shuffle},
      {"aten.native_channel_shuffle", channel_shuffle},
      {"aten.complex", complex},
      {"aten.polar", complex},
      {"aten.pixel_unshuffle", pixel_unshuffle},
      {"aten.reflection_pad2d", pad_pictures<true, 4>},
      {"aten.replication_pad2d", pad_pictures<false, 4>},
      {"aten.reflection_pad3d", pad_pictures<true, 6>},
      {"aten.replication_pad3d", pad_pictures<false, 6>},
      {"aten.rrelu_with_noise", dense_as_first<6>},
      {"aten.rrelu_with_noise_functional", rrelu_with_noise},
      {"aten.lift_fresh_copy", dense_as_first<1>},
      {"aten.native_dropout_backward", dropout_backward},
      {"aten.index.Tensor", index},
      {"aten._unsafe_index.Tensor", index},
      {"aten.soft_margin_loss", soft_margin_loss},
      {"aten.max_unpool2d", max_unpool2d},
      {"aten.normal.Tensor_Tensor", normal},
      {"aten.poisson", dense_as_first<2>},
      {"aten._standard_gamma", dense_as_first<2>},
      {"aten._sample_dirichlet", dense_as_first<2>},
      {"aten.binomial", binomial},
      {"aten.max", extremum_of_all},
      {"aten.min", extremum_of_all},
      {"aten.var.correction", variance},
      {"aten.std.correction", variance},
      {"aten.var_mean.correction", variance_and_mean},
      {"aten.std_mean.correction", variance_and_mean},
      {"aten.index_select", index_select},
      {"aten.roll", roll},
      {"aten.segment_reduce", segment_reduce},
      {"aten._segment_reduce_backward", segment_reduce_backward},
      {"aten.nll_loss2d_forward", nll_loss2d},
      {"aten.nll_loss2d_backward", nll_loss2d_backward},
      {"aten.mse_loss_backward", mse_loss_backward},
      {"aten.native_layer_norm", layer_norm},
      {"aten.native_layer_norm_backward", layer_norm_backward},
      {"aten.native_group_norm", group_norm},
      {"aten.native_group_norm_backward", group_norm_backward},
      {"aten._native_batch_norm_legit_functional", batch_norm_functional},
      {"aten._batch_norm_with_update_functional", batch_norm_with_update},
      {"aten._native_batch_norm_legit_no_training", batch_norm_no_training},
      {"aten._native_batch_norm_legit.no_stats", batch_norm_no_stats},
      {"aten.native_batch_norm_backward", batch_norm_backward},
      {"aten.embedding_dense_backward", embedding_backward},
      {"aten.where.self", where},
      {"aten._scaled_dot_product_flash_attention_for_cpu", flash_attention_for_cpu},
      {"aten._scaled_dot_product_flash_attention_for_cpu_backward",
       flash_attention_for_cpu_backward},
      {"aten.convolution", convolution<9>},
      {"aten._convolution", convolution<13>},
      {"aten.convolution_backward", convolution_backward},
  };
  return table;
}

}  // namespace

at::Tensor elementwise(std::span<const at::Tensor> operands, at::ScalarType type) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).check_all_same_device(false);  // numbers lie on the CPU
  config.declare_static_dtype_and_device(type, at::kMeta);
  config.add_owned_output(at::Tensor());
  for (const at::Tensor& operand : operands) config.add_owned_const_input(operand);
  return config.build().output();
}

ShapeRule find_shape_rule(std::string_view name) {
  const auto found = rules().find(name);
  return found == rules().end() ? nullptr : found->second;
}

}  // namespace backplane::record
