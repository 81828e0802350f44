// Gradients of convolutions through oneDNN. Tensors go to the formats its primitives ask for, each
// at most once, and results come back; channels-last tensors stay as they are.
#include <algorithm>
#include <cstring>

#include "kernels/kernel_registry.h"
#include "kernels/movement/strided_copy.h"
#include "kernels/primitives/dnnl_support.h"
#include "kernels/primitives/upcast.h"
#include "kernels/rows/channel_sum.h"
#include "kernels/simd/instruction_set.h"

namespace backplane::onednn {
namespace {

using dnnl::memory;
using sdk::KernelCall;
using sdk::StepContext;
using sdk::TensorSpec;

class ConvolutionBackward : public sdk::Kernel {
 public:
  struct Source {
    enum Kind : std::uint8_t { kOperand, kResult, kScratch } kind = kOperand;
    std::size_t index = 0;     // operand or result
    std::uint64_t offset = 0;  // in the scratch
  };
  struct Stage {
    Runnable runnable;
    std::vector<Source> sources;
    std::uint64_t clear_at = 0, clear_bytes = 0;  // in the scratch, before the stage runs
  };
  struct Zero {
    std::size_t result;
    TensorSpec spec;
  };
  // Of an operand that repeats elements, which no primitive reads.
  struct Copy {
    std::size_t operand;
    std::uint64_t offset;
    StridedCopy copy;
  };

  std::vector<Stage> stages;
  std::vector<Zero> zeros;
  std::vector<Copy> copies;
  std::unique_ptr<ChannelSum> sum;  // of the gradient, to the bias's
  Source sum_source;
  std::uint64_t sum_room = 0;
  std::uint64_t scratch = 0;

  std::uint64_t scratch_bytes() const override { return scratch; }
  sdk::Status run(const KernelCall& call) const override {
    for (const Zero& z : zeros)
      strided_fill(z.spec.dims, z.spec.strides, sdk::element_bytes(z.spec.dtype),
                   call.results[z.result], 0);
    for (const Copy& c : copies) c.copy.run(call.scratch + c.offset, call.operands[c.operand]);
    for (const Stage& stage : stages) {
      if (stage.clear_bytes != 0)
        std::memset(call.scratch + stage.clear_at, 0, static_cast<std::size_t>(stage.clear_bytes));
      std::array<void*, 8> pointers;
      for (std::size_t i = 0; i < stage.sources.size(); ++i) {
        const Source& s = stage.sources[i];
        pointers[i] = s.kind == Source::kOperand  ? call.operands[s.index]
                      : s.kind == Source::kResult ? call.results[s.index]
                                                  : call.scratch + s.offset;
      }
      stage.runnable.run({pointers.data(), stage.sources.size()});
    }
    if (sum)
      sum->run(sum_source.kind == Source::kOperand ? call.operands[sum_source.index]
                                                   : call.scratch + sum_source.offset,
               call.results[2], call.scratch + sum_room);
    return {};
  }
};

using Source = ConvolutionBackward::Source;

bool wants(const StepContext& context, std::size_t result) {
  const auto mask = context.ints("output_mask");
  return (result >= mask.size() || mask[result] != 0) && result < context.step().results.size() &&
         context.step().results[result] != BP_NONE;
}

// oneDNN takes strides of dims of size 1 at their word.
Shape tidy_strides(const TensorSpec& spec) {
  Shape strides = spec.strides;
  for (std::size_t d = spec.rank(); d-- > 0;)
    if (spec.dims[d] == 1)
      strides[d] =
          d + 1 < spec.rank() ? std::max<std::int64_t>(1, strides[d + 1] * spec.dims[d + 1]) : 1;
  return strides;
}
bool channels_last(const TensorSpec& spec) {
  return spec.rank() >= 4 && spec.dims[1] > 1 && spec.strides[1] == 1 &&
         !(spec.dims[2] == 1 && spec.dims[3] == 1);
}

class Builder {
 public:
  explicit Builder(const StepContext& context)
      : context_(context), type_(known_type(context.operand(0).dtype)) {
    const std::size_t spatial = context.operand(1).rank() - 2;
    const auto list = [&](std::string_view name, std::int64_t fallback) {
      Shape out = context.ints(name);
      if (out.empty()) out.push_back(fallback);
      out.resize(spatial, out.back());
      return out;
    };
    stride_ = list("stride", 1);
    padding_ = list("padding", 0);
    dilation_ = list("dilation", 1);
    for (std::int64_t& d : dilation_) --d;
    transposed_ = context.node().bool_or("transposed", false);
    groups_ = context.int_or("groups", 1);
    after_ = padding_;
    const Shape &image = context.operand(transposed_ ? 0 : 1).dims,
                &result = context.operand(transposed_ ? 1 : 0).dims,
                &weight = context.operand(2).dims;
    for (std::size_t d = 0; d < spatial; ++d) {
      const std::int64_t window = (weight[d + 2] - 1) * (dilation_[d] + 1) + 1;
      const std::int64_t exact =
          (result[d + 2] - 1) * stride_[d] + window - image[d + 2] - padding_[d];
      // What PyTorch leaves unread of an uneven stride oneDNN leaves too, but not more of it, as
      // output_padding from the stride on is.
      if (exact <= after_[d] - stride_[d]) after_[d] = exact;
    }
  }

  std::unique_ptr<sdk::Kernel> build() {
    if (context_.operand(0).elements() == 0 || context_.operand(1).elements() == 0) {
      for (std::size_t r = 0; r < 3; ++r)
        if (wants(context_, r) && context_.result(r).elements() != 0)
          kernel_->zeros.push_back({r, context_.result(r)});
      return std::move(kernel_);
    }
    if (!try_make(type_, true) && !try_make(type_, false)) {
      // Where oneDNN has no bfloat16 kernel of this form, the reorders convert.
      if (type_ == Type::kF32 || !try_make(Type::kF32, false)) return nullptr;
    }
    return std::move(kernel_);
  }

 private:
  using Forward = dnnl::convolution_forward;
  using Data = dnnl::convolution_backward_data;
  using Weights = dnnl::convolution_backward_weights;
  static constexpr auto kDirect = dnnl::algorithm::convolution_direct;
  static constexpr std::int64_t kMostAdded = 1024;

  // With the images in channels-last memory, or in what the primitives ask for. False where there
  // is no implementation, or only the plain loops.
  bool try_make(Type compute, bool last) {
    if (last && !channels_last(context_.operand(1)) && !channels_last(context_.operand(2)))
      return false;
    last_ = last;
    plain_ = false;
    kernel_ = std::make_unique<ConvolutionBackward>();
    grad_as_ = {};
    for (std::size_t i = 0; i < 3; ++i) {
      specs_[i] = context_.operand(i);
      sources_[i] = {Source::kOperand, i, 0};
      if (is_describable(specs_[i])) continue;
      const Shape dense = sdk::row_major(specs_[i].dims);
      const std::int64_t size = sdk::element_bytes(specs_[i].dtype);
      sources_[i] = {Source::kScratch, 0,
                     take(static_cast<std::uint64_t>(specs_[i].elements() * size))};
      kernel_->copies.push_back(
          {i, sources_[i].offset, StridedCopy(specs_[i].dims, dense, specs_[i].strides, size)});
      specs_[i].strides = dense;
    }
    try {
      make(compute);
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
      return false;
    }
    return !plain_ || !last;
  }
  template <class Descriptor>
  void look(const Descriptor& chosen) {
    if (std::string_view(chosen.impl_info_str()).find("ref") != std::string_view::npos)
      plain_ = true;
  }

  // A transposed convolution is a convolution from its result to its input: what is the gradient
  // of data there is a forward pass here, and the weight's gradient swaps the two images.
  void make(Type compute) {
    const TensorSpec &image = specs_[transposed_ ? 0 : 1], &result = specs_[transposed_ ? 1 : 0];
    const memory::desc src = activation(compute, image), dst = activation(compute, result);
    const memory::desc weights = any_desc(compute, weight_dims());
    const dnnl::primitive_attr attr = user_scratchpad();
    const Forward::primitive_desc forward(engine(), dnnl::prop_kind::forward_training, kDirect, src,
                                          weights, dst, stride_, dilation_, padding_, after_, attr);
    if (wants(context_, 0)) {
      if (transposed_) {
        look(forward);
        input_gradient(Forward(forward), DNNL_ARG_SRC, forward.src_desc(), forward.weights_desc(),
                       DNNL_ARG_DST, forward.dst_desc(), forward.scratchpad_desc());
      } else {
        const Data::primitive_desc own(engine(), kDirect, src, weights, dst, stride_, dilation_,
                                       padding_, after_, forward, attr);
        look(own);
        input_gradient(Data(own), DNNL_ARG_DIFF_DST, own.diff_dst_desc(), own.weights_desc(),
                       DNNL_ARG_DIFF_SRC, own.diff_src_desc(), own.scratchpad_desc());
      }
    }
    // oneDNN adds all positions to one float each.
    const bool is_apart =
        transposed_ || !wants(context_, 1) || specs_[0].elements() / specs_[0].dims[1] > kMostAdded;
    const bool bias = wants(context_, 2);
    if (wants(context_, 1)) weight_gradient(compute, forward, src, weights, dst, bias && !is_apart);
    if (bias && is_apart) sum_gradient();
  }

  void input_gradient(const dnnl::primitive& primitive, int grad_id, const memory::desc& grad,
                      const memory::desc& weights, int out_id, const memory::desc& out,
                      const memory::desc& pad) {
    ConvolutionBackward::Stage stage;
    std::vector<Runnable::Argument> arguments;
    const auto add = [&](int id, const memory::desc& desc, Source source) {
      arguments.push_back({id, desc});
      stage.sources.push_back(source);
    };
    add(grad_id, grad, gradient_as(grad));
    add(DNNL_ARG_WEIGHTS, weights, reordered(memory_of(specs_[2], true), sources_[2], weights));
    const memory::desc wanted = memory_of(context_.result(0), false);
    const Source target = target_of(0, wanted, out);
    add(out_id, out, target);
    add(DNNL_ARG_SCRATCHPAD, pad, {Source::kScratch, 0, take(pad.get_size())});
    stage.runnable = Runnable(primitive, std::move(arguments));
    kernel_->stages.push_back(std::move(stage));
    put_back(0, wanted, target, out);
  }

  void weight_gradient(Type compute, const Forward::primitive_desc& hint, const memory::desc& src,
                       const memory::desc& weights, const memory::desc& dst, bool bias) {
    // Of bfloat16, bias and weight keep float sums until they are stored.
    const memory::desc bias_desc =
        bias ? memory::desc({specs_[0].dims[1]}, memory::data_type::f32, memory::dims{1})
             : memory::desc();
    const dnnl::primitive_attr attr = user_scratchpad();
    const auto make_pd = [&](const memory::desc& diff_weights) {
      return bias ? Weights::primitive_desc(engine(), kDirect, src, diff_weights, bias_desc, dst,
                                            stride_, dilation_, padding_, after_, hint, attr)
                  : Weights::primitive_desc(engine(), kDirect, src, diff_weights, dst, stride_,
                                            dilation_, padding_, after_, hint, attr);
    };
    const Weights::primitive_desc own = [&] {
      if (compute == Type::kF32) return make_pd(weights);
      try {
        return make_pd(any_desc(Type::kF32, weight_dims()));
      } catch (const dnnl::error& error) {
        if (error.status != dnnl_unimplemented) throw;
        return make_pd(weights);
      }
    }();
    look(own);
    ConvolutionBackward::Stage stage;
    std::vector<Runnable::Argument> arguments;
    const auto add = [&](int id, const memory::desc& desc, Source source) {
      arguments.push_back({id, desc});
      stage.sources.push_back(source);
    };
    const auto image = [&](const memory::desc& desc) {
      return reordered(memory_of(specs_[1], false), sources_[1], desc);
    };
    const memory::desc src_desc = own.src_desc(), dst_desc = own.diff_dst_desc();
    add(DNNL_ARG_SRC, src_desc, transposed_ ? gradient_as(src_desc) : image(src_desc));
    add(DNNL_ARG_DIFF_DST, dst_desc, transposed_ ? image(dst_desc) : gradient_as(dst_desc));
    const memory::desc wanted = memory_of(context_.result(1), true);
    const memory::desc made = own.diff_weights_desc();
    const Source target = target_of(1, wanted, made);
    add(DNNL_ARG_DIFF_WEIGHTS, made, target);
    Source bias_target{};
    memory::desc bias_wanted;
    if (bias) {
      bias_wanted = dnnl_desc(known_type(context_.result(2).dtype), {specs_[0].dims[1]}, {1});
      bias_target = target_of(2, bias_wanted, bias_desc);
      add(DNNL_ARG_DIFF_BIAS, bias_desc, bias_target);
    }
    const memory::desc pad = own.scratchpad_desc();
    const std::uint64_t pad_at = take(pad.get_size());
    add(DNNL_ARG_SCRATCHPAD, pad, {Source::kScratch, 0, pad_at});
    if (is_smaller_than_stride(src)) {
      stage.clear_at = pad_at;
      stage.clear_bytes = pad.get_size();
    }
    stage.runnable = Runnable(Weights(own), std::move(arguments));
    kernel_->stages.push_back(std::move(stage));
    put_back(1, wanted, target, made);
    if (bias) put_back(2, bias_wanted, bias_target, bias_desc);
  }

  // oneDNN 3.2 and 3.12 (jit_bf16) turn such an image in their scratchpad and read more of it than
  // they wrote: what lies there enters the weight's gradient.
  bool is_smaller_than_stride(const memory::desc& image) const {
    const Shape dims = image.get_dims();
    for (std::size_t d = 0; d < stride_.size(); ++d)
      if (dims[d + 2] < stride_[d]) return true;
    return false;
  }

  // The bias's gradient alone.
  void sum_gradient() {
    const bool inside = channels_last(context_.operand(0));
    const Shape& dims = specs_[0].dims;
    kernel_->sum = std::make_unique<ChannelSum>(
        inside ? 1 : dims[0], dims[1],
        inside ? specs_[0].elements() / dims[1] : product({dims.data() + 2, dims.size() - 2}),
        inside, type_, known_type(context_.result(2).dtype));
    kernel_->sum_source = sources_[0];
    Shape order = sdk::row_major(dims);
    if (inside) {
      order.assign(dims.size(), 1);
      std::int64_t step = dims[1];
      for (std::size_t d = dims.size(); d-- > 2; step *= dims[d]) order[d] = step;
      order[0] = step;
    }
    const TensorSpec& grad = specs_[0];
    bool dense = true;
    for (std::size_t d = 0; d < dims.size(); ++d)
      dense = dense && (dims[d] == 1 || grad.strides[d] == order[d]);
    if (!dense) {
      const std::int64_t size = bytes_of(type_);
      const std::uint64_t at = take(static_cast<std::uint64_t>(grad.elements() * size));
      kernel_->copies.push_back(
          {0, at, StridedCopy(dims, order, context_.operand(0).strides, size)});
      kernel_->sum_source = {Source::kScratch, 0, at};
    }
    kernel_->sum_room = take(kernel_->sum->scratch_bytes());
  }

  // Weights with their groups as a dim of their own.
  Shape weight_dims() const {
    Shape dims = specs_[2].dims;
    if (groups_ > 1) {
      dims[0] /= groups_;
      dims.insert(dims.begin(), groups_);
    }
    return dims;
  }
  memory::desc memory_of(const TensorSpec& spec, bool weight) const {
    Shape dims = spec.dims, strides = tidy_strides(spec);
    if (weight && groups_ > 1) {
      dims[0] /= groups_;
      dims.insert(dims.begin(), groups_);
      strides.insert(strides.begin(), strides[0] * dims[1]);
    }
    return dnnl_desc(known_type(spec.dtype), dims, strides);
  }
  memory::desc activation(Type compute, const TensorSpec& spec) const {
    if (!last_) return any_desc(compute, spec.dims);
    const auto tag = spec.rank() == 4 ? memory::format_tag::nhwc : memory::format_tag::ndhwc;
    return memory::desc(spec.dims, dnnl_type(compute), tag);
  }

  std::uint64_t take(std::uint64_t bytes) {
    const std::uint64_t at = kernel_->scratch;
    kernel_->scratch += aligned_bytes(bytes);
    return at;
  }
  Source reordered(const memory::desc& from, Source source, const memory::desc& to) {
    if (from == to) return source;
    const Source target{Source::kScratch, 0, take(to.get_size())};
    add_reorder(from, source, to, target);
    return target;
  }
  void add_reorder(const memory::desc& from, Source source, const memory::desc& to, Source target) {
    std::size_t bytes = 0;
    Runnable reorder = make_reorder(from, to, &bytes);
    kernel_->stages.push_back(
        {std::move(reorder), {source, target, {Source::kScratch, 0, take(bytes)}}});
  }
  // The gradient in a format; primitives that want the same one share it.
  Source gradient_as(const memory::desc& to) {
    for (const auto& [desc, source] : grad_as_)
      if (desc == to) return source;
    grad_as_.emplace_back(to, reordered(memory_of(specs_[0], false), sources_[0], to));
    return grad_as_.back().second;
  }
  Source target_of(std::size_t result, const memory::desc& wanted, const memory::desc& made) {
    if (wanted == made) return {Source::kResult, result, 0};
    return {Source::kScratch, 0, take(made.get_size())};
  }
  void put_back(std::size_t result, const memory::desc& wanted, Source made,
                const memory::desc& desc) {
    if (made.kind != Source::kResult) add_reorder(desc, made, wanted, {Source::kResult, result, 0});
  }

  const StepContext& context_;
  std::array<TensorSpec, 3> specs_;  // grad, input, weight
  std::array<Source, 3> sources_;
  Type type_;
  Shape stride_, padding_, after_, dilation_;
  bool transposed_ = false, last_ = false, plain_ = false;
  std::int64_t groups_ = 1;
  std::vector<std::pair<memory::desc, Source>> grad_as_;
  std::unique_ptr<ConvolutionBackward> kernel_ = std::make_unique<ConvolutionBackward>();
};

MadeKernel convolution_backward(const StepContext& context) {
  if (known_type(context.operand(0).dtype) == Type::kBF16 && !has_bfloat16())
    return make_upcast_kernel(context, convolution_backward);
  auto kernel = Builder(context).build();
  if (kernel == nullptr)
    return sdk::Status(BP_UNSUPPORTED, "oneDNN has no gradient of a convolution of this form");
  return kernel;
}

std::optional<sdk::Refusal> refuse_convolution(const sdk::NodeView& node) {
  const auto type = type_of(node.operand(0).dtype());
  for (std::size_t i = 0; i < 3; ++i) {
    if (type_of(node.operand(i).dtype()) != type || (type != Type::kF32 && type != Type::kBF16))
      return refusal(BP_REFUSED_DTYPE, "gradients of convolutions in float32 or bfloat16 only");
    if (node.operand(i).rank() < 3 || node.operand(i).rank() > 5)
      return refusal(BP_REFUSED_SHAPE, "convolutions over one to three dims");
  }
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.convolution_backward", convolution_backward, refuse_convolution},
};

}  // namespace

KernelRows convolution_backward_kernels() { return kRows; }

}  // namespace backplane::onednn
