// Shapes of normalisations: images of reduced precision keep statistics in their weights' float32.
#include <ATen/ATen.h>
#include <ATen/native/layer_norm.h>

#include <algorithm>
#include <initializer_list>

#include "core/torch/record/shape_rule_parts.h"

namespace backplane::record {

namespace {

// Statistics of reduced-precision data with weights in float are float.
at::ScalarType statistics_type(const at::Tensor& data, const at::Tensor& weight) {
  const bool mixed = at::isReducedFloatingType(data.scalar_type()) && weight.defined() &&
                     weight.scalar_type() == at::kFloat;
  return mixed ? at::kFloat : data.scalar_type();
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
  const bool is_dense = std::ranges::all_of(
      channels, [](const at::Tensor& one) { return !one.defined() || one.is_contiguous(); });
  if (is_dense && input.is_contiguous()) return dense_like(input);
  for (const auto format : {at::MemoryFormat::ChannelsLast3d, at::MemoryFormat::ChannelsLast})
    if (is_dense && input.is_contiguous(format))
      return dense(input.sizes(), input.scalar_type(), format);
  return in_format_of(input);
}

// input, weight, bias, running_mean, running_var, training, momentum, eps
bool batch_norm_functional(Stack& stack) {
  Arguments in(stack, 8);
  const at::Tensor input = in.tensor(0), mean = in.tensor(3), variance = in.tensor(4);
  const Dims saved{in.at(5).toBool() ? input.size(1) : 0};
  const at::ScalarType type = statistics_type(input, in.tensor(1));
  return in.reply(normalized(input, {in.tensor(1), in.tensor(2), mean, variance}),
                  dense(saved, type), dense(saved, type), dense_like(mean), dense_like(variance));
}

// input, weight, bias, running_mean, running_var, momentum, eps; the fourth result is workspace
bool batch_norm_with_update(Stack& stack) {
  Arguments in(stack, 7);
  const at::Tensor input = in.tensor(0), mean = in.tensor(3), variance = in.tensor(4);
  const at::ScalarType type = statistics_type(input, in.tensor(1));
  return in.reply(normalized(input, {in.tensor(1), in.tensor(2), mean, variance}),
                  dense({input.size(1)}, type), dense({input.size(1)}, type), dense({0}, at::kByte),
                  dense_like(mean), dense_like(variance));
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

constexpr std::pair<std::string_view, ShapeRule> kNormRows[] = {
    {"aten.native_layer_norm", layer_norm},
    {"aten.native_layer_norm_backward", layer_norm_backward},
    {"aten.native_group_norm", group_norm},
    {"aten.native_group_norm_backward", group_norm_backward},
    {"aten._native_batch_norm_legit_functional", batch_norm_functional},
    {"aten._batch_norm_with_update_functional", batch_norm_with_update},
    {"aten._native_batch_norm_legit_no_training", batch_norm_no_training},
    {"aten._native_batch_norm_legit.no_stats", batch_norm_no_stats},
    {"aten.native_batch_norm_backward", batch_norm_backward},
};

}  // namespace

ShapeRules norm_shapes() { return kNormRows; }

}  // namespace backplane::record
