// Shapes of what works on pictures: convolutions, pads, unpooling, shuffles, losses of pixels.
#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>
#include <ATen/native/ConvUtils.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/torch/record/shape_rule_parts.h"

namespace backplane::record {

namespace {

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

bool pixel_shuffle(Stack& stack) {  // self, factor
  Arguments in(stack, 2);
  const at::Tensor self = in.tensor(0);
  const std::int64_t factor = in.at(1).toInt();
  const at::MemoryFormat format = self.suggest_memory_format();
  if (self.dim() != 4 || format != at::MemoryFormat::ChannelsLast || factor <= 0) return false;
  if (self.size(1) % (factor * factor) != 0) return false;
  return in.reply(dense({self.size(0), self.size(1) / (factor * factor), self.size(2) * factor,
                         self.size(3) * factor},
                        self.scalar_type(), format));
}

bool max_unpool2d(Stack& stack) {  // self, indices, output_size
  Arguments in(stack, 3);
  const at::Tensor self = in.tensor(0);
  const Dims wanted = in.at(2).toIntVector();
  if (self.dim() != 4 || wanted.size() != 2 || self.sizes() != in.tensor(1).sizes()) return false;
  return in.reply(dense({self.size(0), self.size(1), wanted[0], wanted[1]}, self.scalar_type(),
                        self.suggest_memory_format()));
}

// Pictures, or one volume, which the kernels take for pictures where it lies as those do: self and
// pads, of the last dim first.
template <bool kReflects, std::size_t kPads>
bool pad_pictures(Stack& stack) {
  Arguments in(stack, 2);
  const at::Tensor self = in.tensor(0);
  const Dims pads = in.at(1).toIntVector();
  const at::MemoryFormat format = self.suggest_memory_format();
  const bool is_laid = (self.dim() == 4 && format == at::MemoryFormat::ChannelsLast) ||
                       (self.dim() == 5 && format == at::MemoryFormat::ChannelsLast3d);
  if (!is_laid || pads.size() != kPads || self.dim() < static_cast<std::int64_t>(kPads / 2 + 1))
    return false;
  Dims sizes = self.sizes().vec();
  for (std::size_t i = 0; i < pads.size(); ++i) {
    const std::size_t dim = sizes.size() - 1 - i / 2;
    const std::int64_t size = self.size(static_cast<std::int64_t>(dim));
    if (size == 0 || (kReflects && pads[i] >= size)) return false;
    sizes[dim] += pads[i];
  }
  if (std::ranges::any_of(sizes, [](std::int64_t size) { return size < 1; })) return false;
  return in.reply(dense(sizes, self.scalar_type(), format));
}

bool channel_shuffle(Stack& stack) {  // self, groups
  Arguments in(stack, 2);
  return in.reply(in_format_of(in.tensor(0)));
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

constexpr std::pair<std::string_view, ShapeRule> kPictureRows[] = {
    {"aten.channel_shuffle", channel_shuffle},
    {"aten.native_channel_shuffle", channel_shuffle},
    {"aten.pixel_shuffle", pixel_shuffle},
    {"aten.pixel_unshuffle", pixel_unshuffle},
    {"aten.reflection_pad2d", pad_pictures<true, 4>},
    {"aten.replication_pad2d", pad_pictures<false, 4>},
    {"aten.reflection_pad3d", pad_pictures<true, 6>},
    {"aten.replication_pad3d", pad_pictures<false, 6>},
    {"aten.max_unpool2d", max_unpool2d},
    {"aten.nll_loss2d_forward", nll_loss2d},
    {"aten.nll_loss2d_backward", nll_loss2d_backward},
    {"aten.convolution", convolution<9>},
    {"aten._convolution", convolution<13>},
    {"aten.convolution_backward", convolution_backward},
};

}  // namespace

ShapeRules picture_shapes() { return kPictureRows; }

}  // namespace backplane::record
