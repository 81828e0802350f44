#include "kernels/primitives/convolution.h"

#include <algorithm>
#include <cmath>

#include "kernels/movement/dense_memory.h"
#include "kernels/primitives/bounds.h"
#include "kernels/primitives/matmul.h"
#include "kernels/primitives/upcast.h"
#include "kernels/rows/block.h"
#include "kernels/simd/instruction_set.h"

namespace backplane::onednn {
namespace {

using dnnl::memory;
using sdk::NodeView;
using sdk::StepContext;
using sdk::TensorSpec;

// Sizes of one convolution, as oneDNN takes them.
struct Geometry {
  Shape source, target;  // dims
  Shape strides, dilates, before, after;
  std::uint16_t groups = 1;
  bool transposed = false;

  std::size_t spatial() const { return source.size() - 2; }
};

template <class Ints>
Geometry geometry_of(const Shape& source, const Shape& weight, const Shape& target, bool transposed,
                     std::int64_t groups, Ints&& ints, const Shape& pad = {}) {
  Geometry g;
  g.source = source;
  g.target = target;
  g.transposed = transposed;
  g.groups = static_cast<std::uint16_t>(groups);
  const auto expand = [&](std::string_view name, std::int64_t fallback) {
    Shape v = ints(name);
    if (v.empty()) v = {fallback};
    while (v.size() < g.spatial()) v.push_back(v.back());
    return v;
  };
  g.strides = expand("stride", 1);
  g.before = expand("padding", 0);
  for (std::size_t i = 0; i + 1 < pad.size() && i / 2 < g.spatial(); i += 2)  // last dim first
    g.before[g.spatial() - 1 - i / 2] += pad[i];
  g.dilates = expand("dilation", 1);
  for (std::size_t d = 0; d < g.spatial(); ++d) {
    const std::int64_t kernel = (weight[d + 2] - 1) * g.dilates[d] + 1;
    // The far side gets what the sizes say: PyTorch leaves the rest of an uneven stride unread.
    const std::int64_t in = transposed ? target[d + 2] : source[d + 2];
    const std::int64_t out = transposed ? source[d + 2] : target[d + 2];
    const std::int64_t after = (out - 1) * g.strides[d] + kernel - in - g.before[d];
    // So does oneDNN, either way: what no window of a transposed convolution reaches is 0.
    const bool is_rest = !transposed || after > -g.strides[d];
    g.after.push_back(is_rest ? std::max<std::int64_t>(after, 0) : after);
    g.dilates[d] -= 1;
  }
  return g;
}

struct Descriptors {
  memory::desc source, weight, bias, target, scratchpad;
  dnnl::primitive primitive;
  std::string name;
};

template <class Desc>
Descriptors describe(const Desc& pd, dnnl::primitive primitive) {
  return {pd.src_desc(),        pd.weights_desc(),    pd.bias_desc(),    pd.dst_desc(),
          pd.scratchpad_desc(), std::move(primitive), pd.impl_info_str()};
}

Descriptors make_primitive(const Geometry& g, const memory::desc& source,
                           const memory::desc& weight, const memory::desc& bias,
                           const memory::desc& target, const dnnl::primitive_attr& attr) {
  const auto kind = dnnl::prop_kind::forward_inference;
  if (g.transposed) {
    const dnnl::deconvolution_forward::primitive_desc pd(
        engine(), kind, dnnl::algorithm::deconvolution_direct, source, weight, bias, target,
        g.strides, g.dilates, g.before, g.after, attr);
    return describe(pd, dnnl::deconvolution_forward(pd));
  }
  const dnnl::convolution_forward::primitive_desc pd(
      engine(), kind, dnnl::algorithm::convolution_direct, source, weight, bias, target, g.strides,
      g.dilates, g.before, g.after, attr);
  return describe(pd, dnnl::convolution_forward(pd));
}

// oneDNN 3.2 goes over a strided transposed convolution in several passes where the weight is
// larger than the second cache, and adds bias and post-operations in each of them.
bool repeats_epilogue(const std::string& name) {
  return name.find("brgconv_strided") != std::string::npos;
}

// The same order in float32: nothing is rounded between a convolution and its epilogue.
memory::desc in_float32(const memory::desc& desc) {
  const Shape dims = desc.get_dims();
  return desc.get_format_kind() == memory::format_kind::any
             ? any_desc(Type::kF32, dims)
             : dnnl_desc(Type::kF32, dims, desc.get_strides());
}

// Any format for the weight, in the primitive's logical dims.
memory::desc any_weight(const Geometry& g, Type type, const Shape& weight) {
  const PackedLayout layout{
      g.transposed ? WeightKind::kTransposedConvolution : WeightKind::kConvolution, g.groups,
      memory::format_tag::any};
  return packed_desc(layout, type, weight);
}

// A transposed convolution is named for the convolution that it runs as well: "conv:any+ref:any".
bool is_plain_slow(const std::string& name) {
  return name.find("ref") != std::string::npos || name.find("gemm") != std::string::npos;
}

Shape tidy(const Shape& dims, const Shape& strides) {
  Shape out = strides;
  Shape last = channels_last(dims);
  bool channels = true;
  for (std::size_t d = 0; d < dims.size(); ++d)
    channels = channels && (dims[d] == 1 || strides[d] == last[d]);
  if (channels) return last;
  for (std::size_t d = dims.size(); d-- > 0;)
    if (dims[d] == 1) out[d] = d + 1 < dims.size() ? out[d + 1] * dims[d + 1] : 1;
  return out;
}
bool is_channels_last(const Shape& dims, const Shape& strides) {
  return tidy(dims, strides) == channels_last(dims);
}
class ConvolutionKernel : public sdk::Kernel {
 public:
  struct Place {
    enum Kind : std::uint8_t { kOperand, kResult, kScratch } kind = kScratch;
    std::size_t index = 0;
    std::uint64_t offset = 0;
    std::byte* in(const sdk::KernelCall& call) const {
      return kind == kOperand  ? call.operands[index]
             : kind == kResult ? call.results[index]
                               : call.scratch + offset;
    }
  };
  struct Stage {
    Runnable runnable;
    std::vector<Place> places;
  };
  // Scale and shift of a folded batch norm, made anew in each call: the weight is not ours.
  struct Fold {
    std::size_t mean, variance, gamma, beta, bias;  // operands; SIZE_MAX where absent
    Type types[5];
    std::int64_t channels, bias_step;
    double eps;
    std::uint64_t scale, shift;  // in the scratch
  };
  struct Copy {
    StridedCopy copy;
    std::size_t operand;
    std::uint64_t offset;
  };

  std::vector<Copy> copies;
  std::vector<Fold> folds;
  std::vector<Stage> stages;
  ResultBounds bounds;
  ScratchPlan scratch;

  std::uint64_t scratch_bytes() const override { return scratch.bytes(); }
  sdk::Status run(const sdk::KernelCall& call) const override {
    for (const Copy& c : copies) c.copy.run(call.scratch + c.offset, call.operands[c.operand]);
    for (const Fold& f : folds) fold(f, call);
    for (const Stage& stage : stages) {
      std::array<void*, 24> pointers;
      for (std::size_t i = 0; i < stage.places.size(); ++i) pointers[i] = stage.places[i].in(call);
      stage.runnable.run({pointers.data(), stage.places.size()});
    }
    bounds.run(call.results[0]);
    return {};
  }

 private:
  static void fold(const Fold& f, const sdk::KernelCall& call) {
    auto* scale = reinterpret_cast<float*>(call.scratch + f.scale);
    auto* shift = reinterpret_cast<float*>(call.scratch + f.shift);
    const std::size_t operands[5] = {f.mean, f.variance, f.gamma, f.beta, f.bias};
    for (std::int64_t c = 0; c < f.channels; ++c) {
      float v[5] = {0, 1, 1, 0, 0};
      for (std::size_t k = 0; k < 5; ++k)
        if (operands[k] != SIZE_MAX)
          load_function(f.types[k], Domain::kF32)(
              &v[k],
              call.operands[operands[k]] + c * (k == 4 ? f.bias_step : 1) * bytes_of(f.types[k]), 1,
              1);
      scale[c] = v[2] / std::sqrt(v[1] + static_cast<float>(f.eps));
      shift[c] = (v[4] - v[0]) * scale[c] + v[3];
    }
  }
};

using Place = ConvolutionKernel::Place;

class Builder {
 public:
  Builder(const StepContext& context, std::uint32_t packed)
      : context_(context), node_(context.node()), packed_(packed) {}

  std::unique_ptr<sdk::Kernel> build() {
    next_ =
        context_.step().nodes.size() > 1 && context_.node(1).op() == "aten.constant_pad_nd" ? 2 : 1;
    source_value_ = next_ == 2 ? context_.node(1).operand_index(0) : node_.operand_index(0);
    const TensorSpec& source = context_.value(source_value_);
    const TensorSpec& weight = context_.value(node_.operand_index(1));
    const TensorSpec& target = context_.value(node_.result_index());
    type_ = known_type(target.dtype);
    if (target.elements() == 0) return std::move(kernel_);
    const TensorSpec& weight_spec = packed_ == BP_NONE ? weight : context_.value(packed_);
    geometry_ = geometry_of(
        source.dims, weight_spec.dims, target.dims, node_.bool_or("transposed", false),
        context_.int_or("groups", 1), [&](std::string_view name) { return context_.ints(name); },
        next_ == 2 ? context_.dims().list(context_.node(1), "pad") : Shape{});
    const bool has_bias = node_.has_operand(2);
    const std::size_t first = fold_norm(target, has_bias);
    const memory::desc bias =
        has_bias && kernel_->folds.empty()
            ? memory::desc({target.dims[1]}, dnnl_type(type_), memory::dims{1})
            : memory::desc();

    // Tensors that lie channels last are used where they are; others go through the format that
    // the primitive likes best.
    memory::desc source_desc = wanted(source), target_desc = wanted(target);
    const memory::desc weight_any = any_weight(geometry_, type_, weight_spec.dims);
    memory::desc weight_desc = weight_any;
    std::optional<PackedLayout> layout;
    if (packed_ != BP_NONE) {
      layout = parse_layout_id(weight_spec.layout.layout_id);
      if (!layout) throw std::invalid_argument("a weight in an unknown layout");
      weight_desc = packed_desc(*layout, type_, weight_spec.dims);
    }
    Descriptors made;
    std::vector<PostOpOperand> operands;
    memory::desc chained_desc = plain(target);  // of the tensors that post-ops read
    const auto attempt = [&](const memory::desc& s, const memory::desc& w, const memory::desc& t) {
      operands.clear();
      dnnl::post_ops ops = norm_ops(target.rank());
      append_post_ops(context_, first, chain_, chained_desc, ops, operands);
      dnnl::primitive_attr attr = user_scratchpad();
      attr.set_post_ops(ops);
      made = make_primitive(geometry_, s, w, bias, t, attr);
      is_apart_ = (!bias.is_zero() || ops.len() != 0) && repeats_epilogue(made.name);
      if (is_apart_)
        made = make_primitive(geometry_, s, w, memory::desc(), in_float32(t), user_scratchpad());
    };
    // Post-ops that read a whole tensor need the result in that tensor's own order.
    if (reads_tensors(first)) target_desc = plain(target);
    bool done = false;
    if (layout) {
      try {
        attempt(source_desc, weight_desc, target_desc);
        done = !is_plain_slow(made.name);
      } catch (const dnnl::error&) {  // no such combination: the weight is repacked below
      }
    }
    if (!done) attempt(source_desc, weight_any, target_desc);
    if (is_plain_slow(made.name) && !(source_desc == any(source)))
      attempt(any(source), weight_any, target_desc);
    // Into an order of dims that oneDNN has a kernel for, and from there.
    if (is_plain_slow(made.name) && reads_tensors(first)) {
      chained_desc = target_desc = dnnl_desc(type_, target.dims, channels_last(target.dims));
      attempt(any(source), weight_any, target_desc);
    }

    add_stages(source, weight_spec, target, layout, made, operands,
               has_bias && kernel_->folds.empty());
    kernel_->bounds = ResultBounds(context_);
    return std::move(kernel_);
  }

 private:
  memory::desc any(const TensorSpec& spec) const { return any_desc(type_, spec.dims); }
  memory::desc plain(const TensorSpec& spec) const {
    return dnnl_desc(type_, spec.dims, tidy(spec.dims, spec.strides));
  }
  memory::desc wanted(const TensorSpec& spec) const {
    return is_describable(spec) && is_channels_last(spec.dims, spec.strides) ? plain(spec)
                                                                             : any(spec);
  }
  std::size_t position(std::uint32_t value) const { return context_.position(value); }

  // The first node after the convolution and its norm.
  std::size_t fold_norm(const TensorSpec& target, bool has_bias) {
    chain_ = node_.result_index();
    if (context_.step().nodes.size() <= next_) return next_;
    const NodeView norm = context_.node(next_);
    if (!is_foldable_norm(norm, chain_)) return next_;
    ConvolutionKernel::Fold f{};
    const std::size_t from[5] = {3, 4, 1, 2, SIZE_MAX};
    std::size_t* to[5] = {&f.mean, &f.variance, &f.gamma, &f.beta, &f.bias};
    for (std::size_t k = 0; k < 5; ++k) {
      const bool is_bias = k == 4;
      const bool present = is_bias ? has_bias : norm.has_operand(from[k]);
      *to[k] = SIZE_MAX;
      if (!present) continue;
      const std::uint32_t v = is_bias ? node_.operand_index(2) : norm.operand_index(from[k]);
      *to[k] = position(v);
      f.types[k] = known_type(context_.value(v).dtype);
    }
    f.channels = target.dims[1];
    f.bias_step = has_bias ? context_.value(node_.operand_index(2)).strides[0] : 0;
    f.eps = norm.real_or("eps", 1e-5);
    f.scale = kernel_->scratch.take_floats(f.channels);
    f.shift = kernel_->scratch.take_floats(f.channels);
    kernel_->folds.push_back(f);
    chain_ = norm.result_index();
    return next_ + 1;
  }
  dnnl::post_ops norm_ops(std::size_t rank) {
    dnnl::post_ops ops;
    if (kernel_->folds.empty()) return ops;
    Shape dims(rank, 1);
    dims[1] = kernel_->folds[0].channels;
    channel_desc_ = dnnl_desc(Type::kF32, dims, sdk::row_major(dims));
    ops.append_binary(dnnl::algorithm::binary_mul, channel_desc_);
    ops.append_binary(dnnl::algorithm::binary_add, channel_desc_);
    return ops;
  }
  bool reads_tensors(std::size_t first) const {
    for (std::size_t n = first; n < context_.step().nodes.size(); ++n)
      if (context_.node(n).op() == "aten.add.Tensor" || context_.node(n).op() == "aten.mul.Tensor")
        return true;
    return false;
  }

  // Moves `at` to a row-major copy; its strides.
  Shape dense(const TensorSpec& spec, Place& at) {
    Shape strides = sdk::row_major(spec.dims);
    const Place copy{Place::kScratch, 0, kernel_->scratch.take(spec.elements() * bytes_of(type_))};
    kernel_->copies.push_back(
        {StridedCopy(spec.dims, strides, spec.strides, bytes_of(type_)), at.index, copy.offset});
    at = copy;
    return strides;
  }
  memory::desc plain_or_dense(const TensorSpec& spec, Place& at) {
    const Shape strides = is_describable(spec) ? spec.strides : dense(spec, at);
    return dnnl_desc(type_, spec.dims, tidy(spec.dims, strides));
  }
  // Into the wanted format through the scratch memory, where the tensor is not in it already.
  Place brought(Place from, const memory::desc& have, const memory::desc& want) {
    if (have == want) return from;
    const Place at{Place::kScratch, 0,
                   kernel_->scratch.take(static_cast<std::int64_t>(want.get_size()))};
    reorder(from, have, at, want);
    return at;
  }
  void reorder(Place from, const memory::desc& have, Place to, const memory::desc& want) {
    std::size_t bytes = 0;
    ConvolutionKernel::Stage stage{make_reorder(have, want, &bytes), {from, to}};
    stage.places.push_back(
        {Place::kScratch, 0, kernel_->scratch.take(static_cast<std::int64_t>(bytes))});
    kernel_->stages.push_back(std::move(stage));
  }

  // What a stage is given.
  struct Parts {
    std::vector<Runnable::Argument> arguments;
    std::vector<Place> places;
    void add(int id, const memory::desc& desc, Place place) {
      arguments.push_back({id, desc});
      places.push_back(place);
    }
  };
  void add_stage(Parts parts, const dnnl::primitive& primitive, const memory::desc& scratchpad) {
    parts.add(DNNL_ARG_SCRATCHPAD, scratchpad,
              {Place::kScratch, 0,
               kernel_->scratch.take(static_cast<std::int64_t>(scratchpad.get_size()))});
    kernel_->stages.push_back(
        {Runnable(primitive, std::move(parts.arguments)), std::move(parts.places)});
  }

  void add_stages(const TensorSpec& source, const TensorSpec& weight, const TensorSpec& target,
                  const std::optional<PackedLayout>& layout, const Descriptors& made,
                  const std::vector<PostOpOperand>& operands, bool has_bias) {
    Place source_at{Place::kOperand, position(source_value_), 0};
    const memory::desc source_have = plain_or_dense(source, source_at);
    const PackedLayout plain_layout{
        geometry_.transposed ? WeightKind::kTransposedConvolution : WeightKind::kConvolution,
        geometry_.groups, memory::format_tag::undef};
    Place weight_at{Place::kOperand,
                    position(packed_ == BP_NONE ? node_.operand_index(1) : packed_), 0};
    memory::desc weight_have;
    if (layout) {
      weight_have = packed_desc(*layout, type_, weight.dims);
    } else {
      const Shape strides = is_describable(weight) ? weight.strides : dense(weight, weight_at);
      weight_have = plain_desc(plain_layout, type_, weight.dims, tidy(weight.dims, strides));
    }

    const Place s = brought(source_at, source_have, made.source);
    const Place w = brought(weight_at, weight_have, made.weight);
    const Place result{Place::kResult, 0, 0};
    const bool direct = made.target == plain(target);
    const Place t =
        direct ? result
               : Place{Place::kScratch, 0,
                       kernel_->scratch.take(static_cast<std::int64_t>(made.target.get_size()))};
    Parts parts;
    parts.add(DNNL_ARG_SRC, made.source, s);
    parts.add(DNNL_ARG_WEIGHTS, made.weight, w);
    parts.add(DNNL_ARG_DST, made.target, t);
    Place bias_at{Place::kOperand, 0, 0};
    if (has_bias) {
      const TensorSpec& bias = context_.value(node_.operand_index(2));
      bias_at.index = position(node_.operand_index(2));
      if (!bias.contiguous()) dense(bias, bias_at);
      if (!is_apart_) parts.add(DNNL_ARG_BIAS, made.bias, bias_at);
    }
    for (const auto& f : kernel_->folds) {
      if (is_apart_) break;
      parts.add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, channel_desc_,
                {Place::kScratch, 0, f.scale});
      parts.add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1, channel_desc_,
                {Place::kScratch, 0, f.shift});
    }
    for (const PostOpOperand& p : operands)
      parts.add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(p.index) | DNNL_ARG_SRC_1, p.desc,
                brought({Place::kOperand, position(p.value), 0}, plain(target), p.desc));
    add_stage(std::move(parts), made.primitive, made.scratchpad);
    if (is_apart_) add_epilogue(made.target, t, bias_at);
    if (!direct) reorder(t, made.target, result, plain(target));
  }

  // The folded norm, or the bias, over the convolution's float32 result in place.
  void add_epilogue(const memory::desc& target, Place at, Place bias_at) {
    const bool is_norm = !kernel_->folds.empty();
    Shape dims = target.get_dims();
    for (std::size_t d = 0; d < dims.size(); ++d)
      if (d != 1) dims[d] = 1;
    const memory::desc first =
        is_norm ? channel_desc_ : dnnl_desc(type_, dims, sdk::row_major(dims));
    dnnl::primitive_attr attr = user_scratchpad();
    dnnl::post_ops ops;
    if (is_norm) ops.append_binary(dnnl::algorithm::binary_add, channel_desc_);
    attr.set_post_ops(ops);
    const dnnl::binary::primitive_desc pd(
        engine(), is_norm ? dnnl::algorithm::binary_mul : dnnl::algorithm::binary_add, target,
        first, target, attr);
    Parts parts;
    parts.add(DNNL_ARG_SRC_0, target, at);
    parts.add(DNNL_ARG_SRC_1, first,
              is_norm ? Place{Place::kScratch, 0, kernel_->folds[0].scale} : bias_at);
    parts.add(DNNL_ARG_DST, target, at);
    if (is_norm)
      parts.add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, channel_desc_,
                {Place::kScratch, 0, kernel_->folds[0].shift});
    add_stage(std::move(parts), dnnl::binary(pd), pd.scratchpad_desc());
  }

  const StepContext& context_;
  NodeView node_;
  std::uint32_t packed_;
  std::uint32_t chain_ = BP_NONE, source_value_ = BP_NONE;
  std::size_t next_ = 1;  // the first node after the convolution and its padding
  Type type_ = Type::kF32;
  bool is_apart_ = false;  // bias and norm are a stage of their own
  Geometry geometry_;
  memory::desc channel_desc_;
  std::unique_ptr<ConvolutionKernel> kernel_ = std::make_unique<ConvolutionKernel>();
};

}  // namespace

Shape channels_last(const Shape& dims) {
  Shape out(dims.size(), 1);
  std::int64_t at = std::max<std::int64_t>(dims[1], 1);
  for (std::size_t d = dims.size(); d-- > 2;) {
    out[d] = at;
    at *= std::max<std::int64_t>(dims[d], 1);
  }
  out[0] = at;
  return out;
}

bool is_convolution_op(std::string_view op) { return op == "aten.convolution"; }

namespace {

// Whether more lies behind the last window of a transposed convolution than a stride leaves, which
// oneDNN does not take: with dilation, output_padding may be as large.
bool reaches_beyond(const NodeView& node) {
  if (!node.bool_or("transposed", false)) return false;
  const auto at = [&](const char* name, std::size_t d, std::int64_t fallback) {
    const bp_attribute* list = node.attribute(name);
    return list == nullptr || list->count == 0
               ? fallback
               : list->integers[std::min<std::size_t>(d, list->count - 1)];
  };
  for (std::size_t d = 0; d + 2 < node.operand(0).rank(); ++d)
    if (at("output_padding", d, 0) - at("padding", d, 0) >= at("stride", d, 1)) return true;
  return false;
}

}  // namespace

std::optional<sdk::Refusal> refuse_convolution(const NodeView& node) {
  const auto refuse = [](bp_refusal reason, const char* why) {
    return sdk::Refusal{0, reason, why};
  };
  const auto type = type_of(node.result().dtype());
  if (type != Type::kF32 && type != Type::kBF16)
    return refuse(BP_REFUSED_DTYPE, "convolutions of float32 and bfloat16 only");
  for (std::size_t i = 0; i < 3; ++i)
    if (node.has_operand(i) && type_of(node.operand(i).dtype()) != type)
      return refuse(BP_REFUSED_DTYPE, "convolutions of operands of one type only");
  const std::size_t rank = node.operand(0).rank();
  if (rank < 3 || rank > 5) return refuse(BP_REFUSED_SHAPE, "one to three spatial dims");
  for (const bp_dim d : node.operand(0).dims())
    if (d == 0) return refuse(BP_REFUSED_SHAPE, "an empty input");
  if (node.is_dim_class("groups") || node.int_or("groups", 1) > 65535)
    return refuse(BP_REFUSED_DYNAMIC, "groups that vary");
  if (reaches_beyond(node))
    return refuse(BP_REFUSED_ATTRIBUTE, "output_padding of a stride or more beyond the padding");
  return std::nullopt;
}

bool is_input_padding(const NodeView& pad, const NodeView& node) {
  if (pad.op() != "aten.constant_pad_nd" || pad.is_dim_class("value") ||
      pad.real_or("value", 0) != 0 || node.bool_or("transposed", false))
    return false;
  const bp_attribute* sizes = pad.attribute("pad");
  if (sizes == nullptr) return false;
  const std::size_t spatial = node.operand(0).rank() - 2;
  for (std::size_t i = 0; i < sizes->count; ++i) {
    if ((sizes->class_flags && sizes->class_flags[i] != 0) || sizes->integers[i] < 0) return false;
    if (i >= 2 * spatial && sizes->integers[i] != 0) return false;
  }
  return true;
}

namespace {

// Where a dim has one element, its stride says nothing.
bool lie_alike(const sdk::ValueView& a, const sdk::ValueView& b) {
  for (std::size_t d = 0; d < a.rank(); ++d)
    if (a.dims()[d] != 1 && a.strides()[d] != b.strides()[d]) return false;
  return true;
}

}  // namespace

bool is_foldable_norm(const NodeView& node, std::uint32_t chained) {
  if (node.op() != "aten._native_batch_norm_legit_no_training") return false;
  if (node.operand_index(0) != chained || !node.has_operand(3) || !node.has_operand(4))
    return false;
  // The convolution writes where its own result would lie.
  if (!lie_alike(node.operand(0), node.result())) return false;
  for (std::size_t i = 1; i < 5; ++i) {
    if (!node.has_operand(i)) continue;
    const sdk::ValueView v = node.operand(i);
    if (v.rank() != 1 || (v.strides()[0] != 1 && v.dims()[0] != 1)) return false;
  }
  return true;
}

std::uint64_t choose_convolution_layout(const NodeView& node) {
  const auto list = [&](std::string_view name) {
    Shape out;
    if (const bp_attribute* a = node.attribute(name))
      out.assign(a->integers, a->integers + a->count);
    return out;
  };
  const sdk::ValueView weight = node.operand(1);
  const Type type = known_type(weight.dtype());
  if (type == Type::kBF16 && !has_bfloat16()) return 0;
  const Shape source = node.operand(0).hint_dims(), target = node.result().hint_dims();
  const Geometry g = geometry_of(source, weight.hint_dims(), target,
                                 node.bool_or("transposed", false), node.int_or("groups", 1), list);
  const auto last = [&](const Shape& dims) { return dnnl_desc(type, dims, channels_last(dims)); };
  const Descriptors made = make_primitive(g, last(source), any_weight(g, type, weight.hint_dims()),
                                          memory::desc(), last(target), user_scratchpad());
  const auto tag = find_tag(made.weight);
  if (tag == memory::format_tag::undef) return 0;
  return layout_id({g.transposed ? WeightKind::kTransposedConvolution : WeightKind::kConvolution,
                    g.groups, tag});
}

sdk::Result<std::unique_ptr<sdk::Kernel>> make_convolution_kernel(const StepContext& context,
                                                                  std::uint32_t packed) {
  if (known_type(context.value(context.node().result_index()).dtype) == Type::kBF16 &&
      !has_bfloat16())
    return make_upcast_kernel(
        context, [&](const StepContext& wide) { return make_convolution_kernel(wide, packed); });
  return Builder(context, packed).build();
}

}  // namespace backplane::onednn
