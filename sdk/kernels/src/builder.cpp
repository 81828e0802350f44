#include "builder.hpp"

#include <backplane/kernelgen/split.hpp>

#include <algorithm>

namespace backplane::kernels {

std::optional<Storage> storage_of(bp_dtype dtype) {
  if (dtype == sdk::kFloat32) return Storage::kF32;
  if (dtype == sdk::kFloat64) return Storage::kF64;
  if (dtype == sdk::kFloat16) return Storage::kF16;
  if (dtype == sdk::kBFloat16) return Storage::kBF16;
  if (dtype == sdk::kInt64) return Storage::kI64;
  if (dtype == sdk::kInt32) return Storage::kI32;
  if (dtype == sdk::kInt16) return Storage::kI16;
  if (dtype == sdk::kInt8) return Storage::kI8;
  if (dtype == sdk::kUInt8) return Storage::kU8;
  if (dtype == sdk::kBool) return Storage::kBool;
  return std::nullopt;
}
std::int64_t product(const Shape& dims) {
  std::int64_t n = 1;
  for (const std::int64_t d : dims) n *= d;
  return n;
}
bool is_absent(const sdk::ValueView& v) { return v.dtype().bits == 0; }

Builder::Builder(Target& target, const sdk::StepContext& step, KernelFamilies* families,
                 SharedKernels* shared)
    : target_(target), step_(step), families_(families), shared_(shared) {
  constexpr std::uint64_t kLaunches = 1 << 16, kCopies = std::uint64_t{1} << 63;  // of one step
  place_ = step.step().is_copy() ? kCopies | (step.step().results[0] * kLaunches)
                                 : step.step().nodes[0] * kLaunches;
  const Facts& facts = target.facts();
  schedule_.gpu = facts.gpu;
  schedule_.lanes = facts.lanes;
  schedule_.unroll = families == nullptr;  // else each length of a row would build a kernel
  schedule_.stream_bytes = static_cast<std::int64_t>(facts.stream_bytes);
  schedule_.group_size = static_cast<std::int64_t>(std::min<std::size_t>(256, facts.group_limit));
  Work work;
  for (const std::uint32_t n : step.step().nodes) {
    const sdk::NodeView node = step.node_at(n);
    work.nodes.push_back(node.id());
    if (!label_.empty()) label_ += " + ";
    label_ += std::string(node.op()) + " (node " + std::to_string(node.id()) + ")";
  }
  if (label_.empty()) label_ = "a copy";
  work.name = label_;
  launches_ = std::make_unique<LaunchList>(std::make_shared<const Work>(std::move(work)));
}

Result<TensorView> Builder::operand(std::size_t i) {
  const TensorSpec& spec = step_.operand(i);
  TensorView view{Argument::operand(i), *storage_of(spec.dtype), spec.dims, spec.strides};
  // What lies on the host: numbers bound by value, and constants. Views of them lie there as well.
  std::uint32_t root = step_.step().operands[i];
  std::int64_t offset = 0;
  const sdk::GraphView& graph = step_.graph();
  for (;;) {
    const sdk::ValueView at = graph.value(root);
    if (at.alias_of() == BP_NONE) break;
    root = at.alias_of();
    offset += sdk::view_offset(at, step_.value(root), graph.value(root), step_.dims()) *
              sdk::element_bytes(step_.value(root).dtype);
  }
  const sdk::ValueView value = graph.value(root);
  if (value.has(BP_VALUE_HOST_SCALAR)) {
    view.argument = Argument::value(i);
  } else if (value.has(BP_VALUE_CONSTANT) && value.raw().producer == BP_NONE) {
    auto memory = target_.constant(value.raw().data, value.raw().data_bytes);
    if (!memory.ok()) return memory.status();
    view.argument = {Argument::kConstant, 0, static_cast<std::uint64_t>(offset), *memory};
  }
  return view;
}

TensorView Builder::result(std::size_t i) const {
  const TensorSpec& spec = step_.result(i);
  return {Argument::result(i), *storage_of(spec.dtype), spec.dims, spec.strides};
}
bool Builder::wants(std::size_t result) const {
  if (!step_.step().is_copy())  // gradients that were not asked for have no shape to speak of
    if (const bp_attribute* mask = step_.node().attribute("output_mask"))
      if (result < mask->count && mask->integers[result] == 0) return false;
  return result < step_.step().results.size() && step_.step().results[result] != BP_NONE &&
         storage_of(step_.result(result).dtype).has_value();
}
TensorView Builder::scratch(Storage storage, Shape dims) {
  const std::int64_t bytes = product(dims) * kernelgen::storage_bytes(storage);
  TensorView view{Argument::scratch(launches_->reserve(static_cast<std::uint64_t>(bytes))),
                  storage,
                  std::move(dims),
                  {}};
  view.strides = sdk::row_major(view.dims);
  return view;
}

void Builder::launch(const kernelgen::Printed& kernel, std::vector<Argument> arguments,
                     Extent items, Extent group) {
  if (shared_ != nullptr) {
    launches_->add({nullptr, std::move(arguments), items, group, 0});
    shared_->add(*launches_, kernel, label_);
    return;
  }
  KernelFamilies::Chosen chosen{kernel, {}};
  if (families_ != nullptr) chosen = families_->choose(place_++, kernel);
  for (const std::uint64_t number : chosen.numbers) arguments.push_back(Argument::bits(number));
  launches_->add({target_.program(chosen.kernel.text, chosen.kernel.entry, label_),
                  std::move(arguments), items, group, 0});
}
Status Builder::fill_zero(const TensorView& dense) {
  const std::int64_t bytes = product(dense.dims) * kernelgen::storage_bytes(dense.storage);
  if (bytes > 0)
    launches_->add(
        {nullptr, {dense.argument}, {1, 1, 1}, {1, 1, 1}, static_cast<std::uint64_t>(bytes)});
  return {};
}

namespace {
Shape joined(const Shape& a, const Shape& b) {
  Shape all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}
}  // namespace

Draft::Draft(Builder& builder, const Shape& outer, const Shape& loop, bool wide_index)
    : builder_(builder) {
  const Shape all = joined(outer, loop);
  bool wide = wide_index;
  if (product(outer) > INT32_MAX || product(loop) > INT32_MAX) wide = true;
  const sdk::Step& step = builder.step().step();
  for (const auto* list : {&step.operands, &step.results})
    for (const std::uint32_t v : *list)
      if (v != BP_NONE && builder.step().value(v).span_bytes() > INT32_MAX) wide = true;
  kernel_.outer_count = outer.size();
  kernel_.expressions = Expressions(all, wide);
  for (std::size_t i = 0; i < all.size(); ++i)
    (i < outer.size() ? outer_ : loop_).push_back(e().axis(i));
}

Expr Draft::attribute(std::string_view name, double fallback, kernelgen::Type type) {
  const sdk::NodeView node = builder_.step().node();
  const bp_attribute* a = node.attribute(name);
  if (a == nullptr || a->kind == BP_ATTRIBUTE_FLOAT)
    return e().constant(type, node.real_or(name, fallback));
  return e().integer(type, node.int_or(name, 0));
}
std::size_t Draft::tensor(const TensorView& view) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Argument& a = tensors_[i];
    if (a.kind == view.argument.kind && a.index == view.argument.index &&
        a.offset == view.argument.offset && a.constant == view.argument.constant &&
        kernel_.tensors[i] == view.storage)
      return i;
  }
  tensors_.push_back(view.argument);
  kernel_.tensors.push_back(view.storage);
  return tensors_.size() - 1;
}
Expr Draft::offset(const TensorView& tensor, const Indices& index) {
  Shape strides = tensor.strides;
  for (std::size_t i = 0; i < strides.size(); ++i)
    if (tensor.dims[i] == 1) strides[i] = 0;
  return e().offset(index, strides);
}
Expr Draft::load(const TensorView& tensor, const Indices& index) {
  return load_at(tensor, offset(tensor, index));
}
Expr Draft::load_at(const TensorView& view, Expr offset) {
  if (view.argument.kind != Argument::kOperandValue)
    return e().load(tensor(view), view.storage, offset);
  for (std::size_t i = 0; i < values_.size(); ++i)
    if (values_[i].index == view.argument.index) return e().value(i, view.storage);
  values_.push_back(view.argument);
  kernel_.values.push_back(view.storage);
  return e().value(values_.size() - 1, view.storage);
}
void Draft::store(const TensorView& view, const Indices& index, Expr value,
                  kernelgen::Store::Mode mode) {
  value = e().cast(value, kernelgen::compute_type(view.storage));
  // The store does that too.
  const kernelgen::Node& made = e().node(value);
  if (made.op == kernelgen::Op::kNarrow && static_cast<Storage>(made.index) == view.storage)
    value = made.a;
  kernel_.stores.push_back({tensor(view), view.storage, offset(view, index), value, mode});
}
std::vector<Argument> Draft::arguments() const {
  std::vector<Argument> all = tensors_;
  all.insert(all.end(), values_.begin(), values_.end());
  return all;
}
void Draft::fault_where(Expr wrong) {
  wrong_ = wrong_ == kernelgen::kNoExpr ? wrong : e().binary(kernelgen::Op::kOr, wrong_, wrong);
}
Status Draft::finish() {
  if (wrong_ != kernelgen::kNoExpr) {
    values_.push_back(Argument::bits(builder_.target().fault_number(builder_.label())));
    kernel_.values.push_back(Storage::kI32);
    const Expr number = e().value(values_.size() - 1, Storage::kI32);
    store({Argument::fault(), Storage::kI32, {1}, {1}}, {index(0)},
          e().select(wrong_, number, e().integer(kernelgen::Type::kI32, 0)),
          kernelgen::Store::kNonZero);
  }
  if (kernel_.stores.empty()) return {};
  const auto split = kernelgen::split_reductions(kernel_, dialect(), builder_.schedule());
  if (!split) {
    launch(kernel_, arguments());
    return {};
  }
  std::vector<Argument> all = tensors_;
  for (const auto& scratch : split->scratch)
    all.push_back(builder_.scratch(scratch.storage, {scratch.elements}).argument);
  all.insert(all.end(), values_.begin(), values_.end());
  for (const kernelgen::Kernel& kernel : split->kernels) launch(kernel, all);
  return {};
}
void Draft::launch(const kernelgen::Kernel& kernel, std::vector<Argument> arguments) {
  const kernelgen::Printed printed = print(kernel, dialect(), builder_.schedule());
  if (printed.items != 0)
    builder_.launch(printed, std::move(arguments), {printed.items, 1, 1}, {printed.group, 1, 1});
}

namespace {

// Dims that lie in memory like one become one, in the order of the second tensor's memory.
void merge_dims(TensorView& a, TensorView& b) {
  std::vector<std::size_t> order;
  for (std::size_t d = 0; d < b.dims.size(); ++d)
    if (b.dims[d] != 1) order.push_back(d);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t i, std::size_t j) { return b.strides[i] > b.strides[j]; });
  Shape dims, left, right;
  for (const std::size_t d : order) {
    if (!dims.empty() && left.back() == a.strides[d] * a.dims[d] &&
        right.back() == b.strides[d] * b.dims[d]) {
      dims.back() *= b.dims[d];
      left.back() = a.strides[d];
      right.back() = b.strides[d];
      continue;
    }
    dims.push_back(b.dims[d]);
    left.push_back(a.strides[d]);
    right.push_back(b.strides[d]);
  }
  a.dims = b.dims = dims;
  a.strides = left;
  b.strides = right;
}

}  // namespace

Status copy_elements(Builder& builder, TensorView from, TensorView to) {
  if (builder.facts().gpu) merge_dims(from, to);
  Draft draft(builder, to.dims);
  draft.store(to, draft.outer(), draft.load(from, draft.outer()));
  return draft.finish();
}

}  // namespace backplane::kernels
