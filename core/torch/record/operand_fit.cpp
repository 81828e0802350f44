#include "core/torch/record/operand_fit.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/torch/record/operator_info.h"
#include "core/torch/record/session.h"

namespace backplane::record {

namespace {

using Dims = std::vector<std::int64_t>;

at::Tensor shown(at::IntArrayRef sizes) { return at::detail::empty_meta(sizes, at::kFloat); }

// All sizes but the last `count`.
at::IntArrayRef leading(at::IntArrayRef sizes, std::size_t count) {
  return sizes.slice(0, sizes.size() - std::min(count, sizes.size()));
}

// ---- Gradients of views. PyTorch copies what it is given into zeros.

void slice_backward(Operands& in) {  // grad, input_sizes, dim, start, end, step
  const at::Tensor whole = shown(in.at(1).toDimVector());
  in.expand(0, whole
                   .slice(in.at(2).toInt(), in.at(3).toOptional<std::int64_t>(),
                          in.at(4).toOptional<std::int64_t>(), in.at(5).toInt())
                   .sizes());
}

void select_backward(Operands& in) {  // grad, input_sizes, dim, index
  in.expand(0, shown(in.at(1).toDimVector()).select(in.at(2).toInt(), in.at(3).toInt()).sizes());
}

void diagonal_backward(Operands& in) {  // grad, input_sizes, offset, dim1, dim2
  const at::Tensor whole = shown(in.at(1).toDimVector());
  in.expand(0, whole.diagonal(in.at(2).toInt(), in.at(3).toInt(), in.at(4).toInt()).sizes());
}

// grad, input_sizes, dim, size, step. The kernel broadcasts what is not unfolded.
void unfold_backward(Operands& in) {
  const at::Tensor whole = shown(in.at(1).toDimVector());
  const Dims sizes =
      whole.unfold(in.at(2).toInt(), in.at(3).toInt(), in.at(4).toInt()).sizes().vec();
  const auto dim = static_cast<std::size_t>(at::maybe_wrap_dim(in.at(2).toInt(), whole.dim()));
  const at::IntArrayRef grad = in.sizes(0);
  in.need(0, sizes,
          grad.size() == sizes.size() && grad.back() == sizes.back() &&
              (whole.dim() == 0 || grad[dim] == sizes[dim]));
  in.expand(0, sizes);
}

void pad_backward(Operands& in) {  // grad, self, padding
  Dims sizes = in.sizes(1).vec();
  const Dims padding = in.at(2).toIntVector();
  in.dims(1, std::max(in.rank(1), static_cast<std::int64_t>(padding.size() / 2)));
  for (std::size_t i = 0; i < padding.size(); ++i) sizes[sizes.size() - 1 - i / 2] += padding[i];
  in.need(0, sizes);
}

// ---- Gradients of elements and of halves

// grad and the next `kLast` operands are alike.
template <std::size_t kLast>
void alike(Operands& in) {
  for (std::size_t i = 1; i <= kLast; ++i) in.like(0, i);
}

void log_sigmoid_backward(Operands& in) {  // grad, self, buffer
  in.like(0, 1);
  in.need(2, in.sizes(1), in.sizes(2) == in.sizes(1) || in.sizes(2) == at::IntArrayRef{0});
}

void glu_backward(Operands& in) {  // grad, self, dim
  if (in.rank(1) == 0) in.refuse(1, "has no halves");
  Dims sizes = in.sizes(1).vec();
  sizes[static_cast<std::size_t>(at::maybe_wrap_dim(in.at(2).toInt(), in.rank(1)))] /= 2;
  in.need(0, sizes);
}

void cross_entropy_of_bits(Operands& in) {  // self, target, weight, reduction
  in.like(1, 0);
  in.like(2, 0);
}

// grad, self, target, ..., reduction: the gradient is that of a sum where the loss is one.
template <std::size_t kLast, std::size_t kReduction>
void loss_backward(Operands& in) {
  for (std::size_t i = 2; i <= kLast; ++i) in.like(i, 1);
  if (in.at(kReduction).toInt() == at::Reduction::None)
    in.like(0, 1);
  else
    in.need(0, in.sizes(1), in.rank(0) == 0);
}

void soft_margin_loss_backward(Operands& in) {  // grad, self, target, reduction
  in.like(2, 1);
  in.need(0, in.sizes(1), at::is_expandable_to(in.sizes(0), in.sizes(1)));
}

// grad, self [samples, classes] or [classes], target, ...: a class of each sample, or marks of all
// classes with the operand behind the reduction.
template <std::size_t kReduction, bool kOfAllClasses>
void margin_loss_backward(Operands& in) {
  const Dims samples = in.rank(1) > 1 ? Dims{in.size(1, 0)} : Dims{};
  if (kOfAllClasses) {
    in.like(2, 1);
    in.like(kReduction + 1, 1);
  } else {
    in.need(2, samples, c10::multiply_integers(in.sizes(2)) == c10::multiply_integers(samples));
    in.need(kReduction - 1, {in.rank(1) == 0 ? 1 : in.size(1, -1)});  // weights
  }
  if (in.at(kReduction).toInt() == at::Reduction::None)
    in.need(0, samples);
  else
    in.need(0, {}, in.rank(0) == 0);
}

void masked_scatter_backward(Operands& in) {  // grad, mask, sizes
  in.need(1, in.sizes(0), at::is_expandable_to(in.sizes(1), in.sizes(0)));
}

// self, target, weight, reduction, ...
template <bool kBackward>
void nll_loss2d(Operands& in) {
  constexpr std::size_t kSelf = kBackward ? 1 : 0;
  in.dims(kSelf, 4);
  const Dims places{in.size(kSelf, 0), in.size(kSelf, 2), in.size(kSelf, 3)};
  in.need(kSelf + 1, places);
  in.need(kSelf + 2, {in.size(kSelf, 1)});
  if (!kBackward) return;
  if (in.at(4).toInt() == at::Reduction::None)
    in.need(0, places);
  else
    in.need(0, {}, in.rank(0) == 0);
}

// ---- Norms

void weight_norm(Operands& in) {  // v, g, dim
  const std::int64_t dim = in.at(2).toInt();
  const at::IntArrayRef g = in.sizes(1);
  in.need(1, {in.size(0, dim)},
          c10::multiply_integers(g) == in.size(0, dim) &&
              (g.size() == 1 || (in.rank(1) == in.rank(0) && in.size(1, dim) == in.size(0, dim))));
}

void weight_norm_backward(Operands& in) {  // grad, v, g, norms, dim
  in.like(0, 1);
  const std::int64_t rows = in.size(1, in.at(4).toInt());
  for (const std::size_t i : {2, 3})
    in.need(i, {rows}, c10::multiply_integers(in.sizes(i)) == rows);
}

// `first` to `last` have an element for each channel.
void need_channels(Operands& in, std::size_t input, std::size_t first, std::size_t last) {
  const std::int64_t channels = in.size(input, 1);
  for (std::size_t i = first; i <= last; ++i) in.need(i, {channels});
}

template <std::size_t kLast>
void batch_norm(Operands& in) {  // input, weight, bias, mean, variance, ...
  need_channels(in, 0, 1, kLast);
}

// grad, input, weight, running_mean, running_var, save_mean, save_invstd, train, ...
void batch_norm_backward(Operands& in) {
  in.like(0, 1);
  need_channels(in, 1, 2, in.at(7).toBool() ? 6 : 4);
}

// grad, input, mean, rstd, weight, N, C, HxW, groups, mask
void group_norm_backward(Operands& in) {
  const std::int64_t n = in.at(5).toInt(), channels = in.at(6).toInt(), groups = in.at(8).toInt();
  in.like(0, 1);
  in.need(1, {n, channels, in.at(7).toInt()},
          c10::multiply_integers(in.sizes(1)) == n * channels * in.at(7).toInt());
  for (const std::size_t i : {2, 3})
    in.need(i, {n, groups}, c10::multiply_integers(in.sizes(i)) == n * groups);
  in.need(4, {channels});
}

// The last dims of `input` are `shape`; the statistics have one element for each of the others.
void need_rows(Operands& in, std::size_t input, const Dims& shape, std::size_t first,
               std::size_t last) {
  const at::IntArrayRef sizes = in.sizes(input);
  in.need(input, shape,
          sizes.size() >= shape.size() && sizes.slice(sizes.size() - shape.size()) == shape);
  const std::int64_t rows = c10::multiply_integers(sizes.slice(0, sizes.size() - shape.size()));
  for (std::size_t i = first; i <= last; ++i)
    in.need(i, {rows}, c10::multiply_integers(in.sizes(i)) == rows);
}

// grad, input, shape, mean, rstd, weight, bias, mask
void layer_norm_backward(Operands& in) {
  const Dims shape = in.at(2).toIntVector();
  in.like(0, 1);
  need_rows(in, 1, shape, 3, 4);
  in.need(5, shape);
  in.need(6, shape);
}

void rms_norm_backward(Operands& in) {  // grad, input, shape, rstd, weight, mask
  const Dims shape = in.at(2).toIntVector();
  in.like(0, 1);
  need_rows(in, 1, shape, 3, 3);
  in.need(4, shape);
}

// ---- Windows

// The gradient and what is pooled have equal dims but for the last kSpatial.
template <std::size_t kSpatial>
void need_planes(Operands& in) {
  const at::IntArrayRef grad = in.sizes(0), self = in.sizes(1);
  const bool has_both = grad.size() == self.size() && self.size() > kSpatial;
  in.need(0, self, has_both && leading(grad, kSpatial) == leading(self, kSpatial));
}

// grad, self, ..., indices at kIndices (0: none)
template <std::size_t kSpatial, std::size_t kIndices>
void pool_backward(Operands& in) {
  need_planes<kSpatial>(in);
  if (kIndices > 0) in.need(kIndices, in.sizes(0));
}

// grad, self, kernel_size, output_size, indices
template <std::size_t kSpatial>
void fractional_pool_backward(Operands& in) {
  need_planes<kSpatial>(in);
  Dims sizes = leading(in.sizes(1), kSpatial).vec();
  for (const std::int64_t size : in.at(3).toIntVector()) sizes.push_back(size);
  in.need(0, sizes);
  in.need(4, sizes);
}

template <std::int64_t kSpatial>
void fractional_pool(Operands& in) {  // self, kernel_size, output_size, samples
  const bool is_batch = in.rank(0) == kSpatial + 2;
  if (!is_batch) in.dims(0, kSpatial + 1);
  in.need(3, {is_batch ? in.size(0, 0) : 1, in.size(0, is_batch ? 1 : 0), kSpatial});
}

// grad, input, grid, ...
template <std::int64_t kSpatial>
void grid_sampler_backward(Operands& in) {
  in.dims(1, kSpatial + 2);
  in.dims(2, kSpatial + 2);
  Dims grid = in.sizes(2).vec(), grad = grid;
  grid.front() = in.size(1, 0);
  grid.back() = kSpatial;
  in.need(2, grid);
  grad.pop_back();
  grad.insert(grad.begin() + 1, in.size(1, 1));
  in.need(0, grad);
}

// grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
// mask
void convolution_backward(Operands& in) {
  const std::int64_t rank = in.rank(1), groups = in.at(9).toInt();
  if (rank < 3) in.refuse(1, "has no picture");
  in.dims(2, rank);
  const auto wide = [&](std::size_t i) {
    Dims dims = in.at(i).toIntVector();
    if (dims.size() == 1) dims.resize(static_cast<std::size_t>(rank) - 2, dims[0]);
    return dims;
  };
  for (const std::int64_t stride : in.at(4).toIntVector())
    if (stride <= 0) in.refuse(1, "has strides below one");
  const bool transposed = in.at(7).toBool();
  Dims weight = in.sizes(2).vec();
  weight[transposed ? 0 : 1] =
      transposed ? in.size(1, 1) : in.size(1, 1) / std::max<std::int64_t>(groups, 1);
  in.need(2, weight);
  const Dims grad =
      transposed ? at::native::conv_input_size(in.sizes(1), weight, wide(5), wide(8), wide(4),
                                               wide(6), groups)
                 : at::native::conv_output_size(in.sizes(1), weight, wide(5), wide(4), wide(6));
  in.need(0, grad);
}

// ---- Indices

void embedding_backward(Operands& in) {  // grad, indices, ...
  Dims sizes = in.sizes(1).vec();
  sizes.push_back(in.rank(0) > 0 ? in.size(0, -1) : 0);
  in.need(0, sizes);
}

// weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, ...
void embedding_bag(Operands& in) {
  in.dims(0, 2);
  in.dims(1, 1);
  in.dims(2, 1);
  in.like(6, 1);
}

// Bags have a row of the gradient each. `bags` counts them where the forward has written it.
void need_bags(Operands& in, std::size_t indices, std::size_t offset2bag, std::size_t weights) {
  in.dims(0, 2);
  in.dims(indices, 1);
  in.need(offset2bag, in.sizes(indices),
          in.sizes(offset2bag) == in.sizes(indices) || in.sizes(offset2bag) == at::IntArrayRef{0});
  if (weights > 0) in.like(weights, indices);
}

// grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq,
// mode, sparse, per_sample_weights, ...
void embedding_bag_backward(Operands& in) {
  need_bags(in, 1, 3, 10);
  in.need(4, {in.size(0, 0)});
}

// grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
// per_sample_weights, ...
void embedding_bag_dense_backward(Operands& in) {
  need_bags(in, 1, 2, 8);
  in.need(3, {in.size(0, 0)});
}

// grad, weight, indices, offsets, offset2bag, ...
void embedding_bag_weights_backward(Operands& in) {
  need_bags(in, 2, 4, 0);
  in.need(1, {-1, in.size(0, 1)}, in.rank(1) == 2 && in.size(1, 1) == in.size(0, 1));
}

Dims shape_of_indices(const Operands& in, std::size_t i) {
  Dims sizes;
  for (const c10::IValue& index : in.at(i).toListRef())
    if (index.isTensor() && index.toTensor().defined())
      sizes = at::infer_size(sizes, index.toTensor().sizes());
  return sizes;
}

void unsafe_masked_index(Operands& in) {  // self, mask, indices, ...
  const Dims places = shape_of_indices(in, 2);
  in.need(1, places, at::is_expandable_to(in.sizes(1), places));
}

void unsafe_masked_index_put(Operands& in) {  // self, mask, indices, values
  unsafe_masked_index(in);
  const auto indexed = static_cast<std::int64_t>(in.at(2).toListRef().size());
  if (indexed > in.rank(0)) in.refuse(0, "has fewer dimensions than indices");
}

// grad, output, data, reduce, lengths, offsets, axis, ...
void segment_reduce_backward(Operands& in) {
  in.like(0, 1);
  Dims sizes = in.sizes(2).vec();
  if (sizes.empty()) in.refuse(2, "has no dimension");
  const std::int64_t axis = at::maybe_wrap_dim(in.at(6).toInt(), in.rank(2));
  const std::size_t parts = in.has(4) ? 4 : 5;
  if (!in.has(parts)) in.refuse(4, "is missing");
  sizes[static_cast<std::size_t>(axis)] = in.size(parts, axis) - (parts == 5 ? 1 : 0);
  in.need(1, sizes);
  in.need(parts, in.sizes(2).slice(0, static_cast<std::size_t>(axis)),
          in.rank(parts) == axis + 1 &&
              leading(in.sizes(parts), 1) == in.sizes(2).slice(0, static_cast<std::size_t>(axis)));
}

// ---- Matrices, distances, attention

// self [..., rows, columns], its gradient, and the distances between rows
void cdist_backward(Operands& in) {  // grad, x1, x2, p, cdist
  if (in.rank(1) < 2 || in.rank(2) < 2) in.refuse(in.rank(1) < 2 ? 1 : 2, "is no matrix");
  Dims sizes = at::infer_size(leading(in.sizes(1), 2), leading(in.sizes(2), 2));
  sizes.push_back(in.size(1, -2));
  sizes.push_back(in.size(2, -2));
  in.need(2, in.sizes(1), in.size(1, -1) == in.size(2, -1));
  in.need(0, sizes);
  in.need(4, sizes);
}

void pdist_backward(Operands& in) {  // grad, self, p, pdist
  in.dims(1, 2);
  const std::int64_t rows = in.size(1, 0);
  in.need(0, {rows * (rows - 1) / 2});
  in.need(3, {rows * (rows - 1) / 2});
}

void lu_unpack(Operands& in) {  // LU, pivots, ...
  if (in.rank(0) < 2) in.refuse(0, "is no matrix");
  Dims sizes = leading(in.sizes(0), 2).vec();
  sizes.push_back(std::min(in.size(0, -2), in.size(0, -1)));
  in.need(1, sizes);
}

// i1, i2, i3, expand1, expand2, expand3, ...: equal dims where none of them repeats
void trilinear(Operands& in) {
  std::unordered_map<std::int64_t, std::int64_t> known;
  const std::int64_t rank = in.rank(0) + static_cast<std::int64_t>(in.at(3).toDimVector().size());
  for (std::size_t i = 0; i < 3; ++i) {
    const Dims repeated = in.at(3 + i).toIntVector();
    std::size_t own = 0;
    in.dims(i, rank - static_cast<std::int64_t>(repeated.size()));
    for (std::int64_t dim = 0; dim < rank; ++dim) {
      if (std::ranges::find(repeated, dim) != repeated.end()) continue;
      const std::int64_t size = in.sizes(i)[own++];
      if (known.try_emplace(dim, size).first->second != size)
        in.refuse(i, "has another size than the operands beside it");
    }
  }
}

// grad, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale
void attention_backward(Operands& in) {
  in.dims(1, 4);
  in.like(0, 1);
  in.like(4, 1);
  in.need(2, in.sizes(1),
          in.rank(2) == 4 && in.size(2, 0) == in.size(1, 0) && in.size(2, 3) == in.size(1, 3) &&
              in.size(2, 1) > 0 && in.size(1, 1) % in.size(2, 1) == 0);
  in.like(3, 2);
  in.need(5, leading(in.sizes(1), 1));
  const Dims weights{in.size(1, 0), in.size(1, 1), in.size(1, 2), in.size(2, 2)};
  if (in.has(8)) in.need(8, weights, at::is_expandable_to(in.sizes(8), weights));
}

}  // namespace

Operands::Operands(const OperatorInfo& info, torch::jit::Stack& stack, Expand expand)
    : info_(info),
      stack_(stack),
      base_(stack.size() - info.argument_count()),
      expand_(std::move(expand)) {}

bool Operands::has(std::size_t i) const { return at(i).isTensor() && at(i).toTensor().defined(); }

at::IntArrayRef Operands::sizes(std::size_t i) const {
  return has(i) ? at(i).toTensor().sizes() : at::IntArrayRef{};
}

std::int64_t Operands::size(std::size_t i, std::int64_t dim) const {
  const std::int64_t wrapped = dim < 0 ? dim + rank(i) : dim;
  if (wrapped < 0 || wrapped >= rank(i)) refuse(i, "has too few dimensions");
  return sizes(i)[static_cast<std::size_t>(wrapped)];
}

void Operands::refuse(std::size_t i, std::string_view why) const {
  std::ostringstream text;
  text << info_.name << ": operand '" << info_.handle.schema().arguments()[i].name()
       << "' of sizes " << sizes(i) << " " << why;
  Session::current()->refuse(text.str(), Code::kEagerOnly);
}

void Operands::need(std::size_t i, at::IntArrayRef sizes, bool fits) const {
  if (fits || !has(i)) return;
  std::ostringstream why;
  why << "does not fit " << sizes;
  refuse(i, why.str());
}

void Operands::need(std::size_t i, at::IntArrayRef sizes) const {
  need(i, sizes, this->sizes(i) == sizes);
}

void Operands::dims(std::size_t i, std::int64_t rank) const {
  if (has(i) && this->rank(i) != rank) refuse(i, "has not " + std::to_string(rank) + " dimensions");
}

void Operands::expand(std::size_t i, at::IntArrayRef sizes) {
  if (!has(i) || this->sizes(i) == sizes) return;
  need(i, sizes, at::is_expandable_to(this->sizes(i), sizes));
  stack_[base_ + i] = expand_(at(i), sizes);
}

OperandFit find_operand_fit(std::string_view name) {
  static const auto& table = *new std::unordered_map<std::string_view, OperandFit>{
      {"aten.slice_backward", slice_backward},
      {"aten.select_backward", select_backward},
      {"aten.diagonal_backward", diagonal_backward},
      {"aten.unfold_backward", unfold_backward},
      {"aten.reflection_pad1d_backward", pad_backward},
      {"aten.reflection_pad2d_backward", pad_backward},
      {"aten.reflection_pad3d_backward", pad_backward},
      {"aten.replication_pad1d_backward", pad_backward},
      {"aten.replication_pad2d_backward", pad_backward},
      {"aten.replication_pad3d_backward", pad_backward},
      {"aten.gelu_backward", alike<1>},
      {"aten.native_dropout_backward", alike<1>},
      {"aten.log_sigmoid_backward", log_sigmoid_backward},
      {"aten.glu_backward", glu_backward},
      {"aten.binary_cross_entropy", cross_entropy_of_bits},
      {"aten.binary_cross_entropy_backward", loss_backward<3, 4>},
      {"aten.soft_margin_loss_backward", soft_margin_loss_backward},
      {"aten.multi_margin_loss_backward", margin_loss_backward<6, false>},
      {"aten.multilabel_margin_loss_backward", margin_loss_backward<3, true>},
      {"aten.masked_scatter_backward", masked_scatter_backward},
      {"aten.nll_loss2d_forward", nll_loss2d<false>},
      {"aten.nll_loss2d_backward", nll_loss2d<true>},
      {"aten._softmax_backward_data", alike<1>},
      {"aten._log_softmax_backward_data", alike<1>},
      {"aten._masked_softmax_backward", alike<1>},
      {"aten._weight_norm_interface", weight_norm},
      {"aten._weight_norm_interface_backward", weight_norm_backward},
      {"aten._native_batch_norm_legit_functional", batch_norm<4>},
      {"aten._batch_norm_with_update_functional", batch_norm<4>},
      {"aten._native_batch_norm_legit_no_training", batch_norm<4>},
      {"aten._native_batch_norm_legit.no_stats", batch_norm<2>},
      {"aten.native_batch_norm_backward", batch_norm_backward},
      {"aten.batch_norm_backward", batch_norm_backward},
      {"aten.native_group_norm_backward", group_norm_backward},
      {"aten.native_layer_norm_backward", layer_norm_backward},
      {"aten._fused_rms_norm_backward", rms_norm_backward},
      {"aten._adaptive_avg_pool2d_backward", pool_backward<2, 0>},
      {"aten._adaptive_avg_pool3d_backward", pool_backward<3, 0>},
      {"aten.adaptive_max_pool2d_backward", pool_backward<2, 2>},
      {"aten.adaptive_max_pool3d_backward", pool_backward<3, 2>},
      {"aten.avg_pool2d_backward", pool_backward<2, 0>},
      {"aten.avg_pool3d_backward", pool_backward<3, 0>},
      {"aten.max_pool2d_with_indices_backward", pool_backward<2, 7>},
      {"aten.max_pool3d_with_indices_backward", pool_backward<3, 7>},
      {"aten.fractional_max_pool2d", fractional_pool<2>},
      {"aten.fractional_max_pool2d_backward", fractional_pool_backward<2>},
      {"aten.fractional_max_pool3d_backward", fractional_pool_backward<3>},
      {"aten.grid_sampler_2d_backward", grid_sampler_backward<2>},
      {"aten.grid_sampler_3d_backward", grid_sampler_backward<3>},
      {"aten.convolution_backward", convolution_backward},
      {"aten.embedding_dense_backward", embedding_backward},
      {"aten._embedding_bag", embedding_bag},
      {"aten._embedding_bag_forward_only", embedding_bag},
      {"aten._embedding_bag_backward", embedding_bag_backward},
      {"aten._embedding_bag_dense_backward", embedding_bag_dense_backward},
      {"aten._embedding_bag_per_sample_weights_backward", embedding_bag_weights_backward},
      {"aten._unsafe_masked_index", unsafe_masked_index},
      {"aten._unsafe_masked_index_put_accumulate", unsafe_masked_index_put},
      {"aten._segment_reduce_backward", segment_reduce_backward},
      {"aten._cdist_backward", cdist_backward},
      {"aten._pdist_backward", pdist_backward},
      {"aten.lu_unpack", lu_unpack},
      {"aten._trilinear", trilinear},
      {"aten._scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
  };
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace backplane::record
