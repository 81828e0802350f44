#include "core/torch/record/shape_rules.h"

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/index_meta_dispatch.h>

#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/torch/record/shape_rule_parts.h"
#include "core/torch/record/value_tensor.h"

namespace backplane::record {

namespace {

template <std::size_t kCount>
bool elementwise_of_first(Stack& stack) {
  Arguments in(stack, kCount);
  return in.reply(elementwise(std::array{in.tensor(0)}, in.tensor(0).scalar_type()));
}

template <std::size_t kCount>
bool gradient_of_elements(Stack& stack) {  // grad, self, ...
  Arguments in(stack, kCount);
  if (in.tensor(0).scalar_type() != in.tensor(1).scalar_type()) return false;
  return in.reply(elementwise(std::array{in.tensor(0), in.tensor(1)}, in.tensor(0).scalar_type()));
}

// Into memory that lies as the first operand does, to the strides of single elements.
template <std::size_t kCount>
bool like_first(Stack& stack) {
  Arguments in(stack, kCount);
  return in.reply(like(in.tensor(0)));
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

bool normal(Stack& stack) {  // mean, std, generator
  Arguments in(stack, 3);
  const at::Tensor mean = in.tensor(0);
  return in.reply(dense(at::infer_size(mean.sizes(), in.tensor(1).sizes()), mean.scalar_type()));
}

bool normal_around(Stack& stack) {  // mean, a number; std, generator
  Arguments in(stack, 3);
  return in.reply(dense(in.tensor(1).sizes(), in.tensor(1).scalar_type()));
}

bool rrelu_with_noise(Stack& stack) {  // self, noise, lower, upper, training, generator
  Arguments in(stack, 6);
  return in.reply(dense_like(in.tensor(0)), like(in.tensor(1)));
}

bool cross_entropy_of_bits(Stack& stack) {  // self, target, weight, reduction
  Arguments in(stack, 4);
  return in.at(3).toInt() == at::Reduction::None && in.reply(like(in.tensor(0)));
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

bool mse_loss_backward(Stack& stack) {  // grad, input, target, reduction
  Arguments in(stack, 4);
  const at::Tensor grad = in.tensor(0), input = in.tensor(1), target = in.tensor(2);
  if (input.sizes() == target.sizes()) return in.reply(dense_like(input));
  // The kernel makes its result as large as that of the loss.
  return in.reply(elementwise(std::array{input, target, grad}, input.scalar_type()));
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

constexpr std::pair<std::string_view, ShapeRule> kShapeRows[] = {
    {"aten.relu", elementwise_of_first<1>},
    {"aten.hardswish", elementwise_of_first<1>},
    {"aten.hardtanh", like_first<3>},  // self, min, max
    {"aten.flip", like_first<2>},      // self, dims
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
    {"aten.complex", complex},
    {"aten.polar", complex},
    {"aten.rrelu_with_noise", dense_as_first<6>},
    {"aten.rrelu_with_noise_functional", rrelu_with_noise},
    {"aten.lift_fresh_copy", dense_as_first<1>},
    {"aten.native_dropout_backward", dropout_backward},
    {"aten.index.Tensor", index},
    {"aten._unsafe_index.Tensor", index},
    {"aten.soft_margin_loss", soft_margin_loss},
    {"aten.normal.Tensor_Tensor", normal},
    {"aten.normal.float_Tensor", normal_around},
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
    {"aten.mse_loss_backward", mse_loss_backward},
    {"aten.embedding_dense_backward", embedding_backward},
    {"aten.where.self", where},
    {"aten._scaled_dot_product_flash_attention_for_cpu", flash_attention_for_cpu},
    {"aten._scaled_dot_product_flash_attention_for_cpu_backward", flash_attention_for_cpu_backward},
};

std::unordered_map<std::string_view, ShapeRule> all_rules() {
  std::unordered_map<std::string_view, ShapeRule> all;
  for (const ShapeRules rules : {ShapeRules(kShapeRows), norm_shapes(), picture_shapes()})
    all.insert(rules.begin(), rules.end());
  return all;
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
  static const auto& rules = *new std::unordered_map(all_rules());
  const auto found = rules.find(name);
  return found == rules.end() ? nullptr : found->second;
}

}  // namespace backplane::record
