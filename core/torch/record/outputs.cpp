#include "core/torch/record/outputs.h"

#include <ATen/FunctionalTensorWrapper.h>

#include <algorithm>
#include <utility>

#include "core/torch/bridge/history.h"
#include "core/torch/record/dispatch.h"
#include "core/torch/record/overlap.h"

namespace backplane::record {

namespace functional = at::functionalization::impl;

namespace {

bool contains(const at::Tensor& whole, const at::Tensor& part) {
  if (!whole.is_non_overlapping_and_dense() || whole.scalar_type() != part.scalar_type())
    return false;
  std::int64_t span = part.numel() > 0 ? 1 : 0;
  for (std::int64_t d = 0; span > 0 && d < part.dim(); ++d)
    span += (part.size(d) - 1) * part.stride(d);
  return part.storage_offset() >= whole.storage_offset() &&
         part.storage_offset() + span <= whole.storage_offset() + whole.numel();
}

}  // namespace

bool Outputs::is_differentiated_view(std::uint32_t output) const {
  const OutputInfo& info = infos_[output];
  const at::Tensor& view = tensors_[output];
  if (!info.requires_grad || info.is_detached || info.is_bare || info.same_as != kAbsent)
    return false;
  if (info.kind == OutputKind::kViewOfArgument) return true;
  if (info.kind != OutputKind::kViewOfOutput) return false;
  const at::Tensor& base = tensors_[info.base];
  return base.requires_grad() && !bridge::leads_to(base, view);
}

Status Outputs::relate(ProgramTape* program) {
  show_views_of_their_own_base();
  BP_RETURN_IF_ERROR(find_whole_of_parts(program));
  find_shared_counters();
  return {};
}

const Handed& Outputs::find_handed(std::uint32_t argument) const {
  return *std::ranges::find(handed_, std::size_t{argument}, &Handed::first_argument);
}
bool Outputs::is_handed(const at::Tensor& tensor) const {
  return std::ranges::any_of(handed_, [&](const Handed& h) { return h.given.is_same(tensor); });
}
Status Outputs::add(const c10::IValue& result) {
  OutputInfo info;
  const auto index = static_cast<std::uint32_t>(infos_.size());
  if (!result.isTensor() || !result.toTensor().defined()) {
    info.kind = OutputKind::kPlain;
    info.plain = result.isTensor() ? c10::IValue() : result;
    infos_.push_back(std::move(info));
    values_.push_back(kNoValue);
    tensors_.emplace_back();
    return {};
  }
  const at::Tensor& tensor = result.toTensor();
  values_.push_back(value_of(session_, tensor, "an output"));
  tensors_.push_back(tensor);
  const at::Tensor& lies = meta_of(index);
  info.dtype = lies.scalar_type();
  info.sizes = lies.sizes().vec();
  info.strides = lies.strides().vec();
  info.storage_offset = lies.storage_offset();
  info.requires_grad = tensor.requires_grad();
  if (!tensor.is_inference()) info.version = static_cast<std::uint32_t>(tensor._version());
  info.is_view = tensor.is_view();
  info.is_one_of_many =
      bridge::is_made_by(torch::autograd::CreationMeta::MULTI_OUTPUT_NODE, tensor);
  // A call makes no history where gradients are off.
  const bool is_bare = !is_handed(tensor) && bridge::is_bare_view(tensor);
  if (info.requires_grad && !had_grad_ && !in_inference_ && !is_handed(tensor) &&
      !(is_bare && is_handed(at::Tensor(tensor._base()))))
    return unsupported("the program turns gradients on where its caller has turned them off");
  if (had_grad_ && info.requires_grad && info.is_one_of_many && bridge::is_written_since(tensor))
    return {Code::kEagerOnly, "a result is one of several views whose base was written since"};
  BP_RETURN_IF_ERROR(find_base(tensor, index, info));
  info.pending = find_pending(tensor);
  info.is_bare = is_bare && had_grad_;
  const bool shows_base =
      info.kind == OutputKind::kViewOfArgument || info.kind == OutputKind::kViewOfOutput;
  if (had_grad_ && info.requires_grad && shows_base &&
      session_.strided_parts.contains(storage_of(tensor)))
    return {Code::kEagerOnly,
            "a result is a differentiated view of which as_strided has taken a part"};
  if (had_grad_ && info.requires_grad &&
      bridge::is_made_by(torch::autograd::CreationMeta::NO_GRAD_MODE, tensor) &&
      !(info.is_bare && shows_base))
    return {Code::kEagerOnly, "a result is a view that was made where gradients are off"};
  if (had_grad_ && info.requires_grad && shows_base && !info.is_bare) {
    const at::Tensor& base = info.kind == OutputKind::kViewOfArgument ? find_handed(info.base).given
                                                                      : tensors_[info.base];
    const at::Tensor whole =
        info.kind == OutputKind::kViewOfOutput ? bridge::root_of(tensor) : base;
    if (whole.requires_grad() &&
        !(bridge::leads_to(tensor, whole) && bridge::leads_to(base, whole)))
      return {Code::kEagerOnly,
              "a result is a view of a view that was made where gradients are off"};
    // AOTAutograd takes such views of arguments, and loses the function in those of results.
    if (base.requires_grad() && bridge::has_own_function_between(tensor, base))
      return {info.kind == OutputKind::kViewOfArgument ? Code::kUnsupported : Code::kEagerOnly,
              "a result shares memory through a function with a gradient of its own"};
  }
  infos_.push_back(std::move(info));
  return {};
}

// As its graph output lies, which need not be as the program's tensor does (layout.h).
const at::Tensor& Outputs::meta_of(std::uint32_t output) const {
  return session_.tape.values[values_[output]].meta;
}

// Whether a view shows other numbers than lie in the memory of its base: PyTorch leaves their
// conjugation or negation pending, a value of a graph has it done.
bool Outputs::reads_memory_otherwise(ValueNumber view, std::array<ValueNumber, 2> bases) const {
  const Tape& tape = session_.tape;
  while (view != kNoValue && view != bases[0] && view != bases[1] &&
         tape.values[view].origin == ValueOrigin::kResult) {
    const Call& call = tape.calls[tape.values[view].producer];
    if (call.info->name == "aten._conj_physical" || call.info->name == "aten.neg") return true;
    view = call.operands.empty() ? kNoValue : call.operands.front();
  }
  return false;
}

// As the argument lies, not as its new value does.
void Outputs::show_memory_of(const Handed& handed, const at::Tensor& view, OutputInfo& info) const {
  const at::FunctionalTensorWrapper* wrapper = functional::unsafeGetFunctionalWrapper(view);
  const BelowRecording below;
  const at::Tensor shown = functional::apply_view_meta_sequence(
      session_.tape.values[handed.value].meta, wrapper->view_metas());
  info.strides = shown.strides().vec();
  info.storage_offset = shown.storage_offset();
}

Status Outputs::find_base(const at::Tensor& tensor, std::uint32_t index, OutputInfo& info) {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (!storage) return {};
  for (const Handed& handed : handed_) {
    if (storage != storage_of(handed.given)) continue;
    if (reads_memory_otherwise(values_[index],
                               {handed.value, value_of(session_, handed.given, "")}))
      return unsupported("a result shows " + argument_text(handed.first_argument) +
                         " conjugated or negated");
    info.kind = tensor.is_same(handed.given) ? OutputKind::kArgument : OutputKind::kViewOfArgument;
    info.base = static_cast<std::uint32_t>(handed.first_argument);
    if (info.kind != OutputKind::kViewOfArgument) return {};
    info.is_detached = !bridge::share_history(tensor, handed.given);
    info.counts_own_writes = bridge::counts_own_writes(tensor, handed.given);
    if (had_grad_ && info.requires_grad && info.is_detached)
      return {Code::kEagerOnly, "a result that is detached from " +
                                    argument_text(handed.first_argument) +
                                    " has a history of its own"};
    // Autograd of strides gives all that share an element their mean.
    const at::Tensor& meta = session_.tape.values[handed.value].meta;
    if (info.requires_grad &&
        has_element_twice({meta.storage_offset(), meta.sizes(), meta.strides()}))
      return unsupported("a result shows " + argument_text(handed.first_argument) +
                         ", whose elements share memory");
    show_memory_of(handed, tensor, info);
    return {};
  }
  for (std::uint32_t earlier = 0; earlier < index; ++earlier) {
    const at::Tensor& other = tensors_[earlier];
    if (!other.defined() || storage != storage_of(other)) continue;
    if (tensor.is_same(other)) {
      info.kind = OutputKind::kViewOfOutput;
      info.base = info.same_as = earlier;
      return {};
    }
    if (find_pending(tensor) || find_pending(other) ||
        reads_memory_otherwise(values_[index], {values_[earlier], kNoValue}))
      return unsupported("a result shows another conjugated or negated");
    if (info.base == kAbsent) info.base = earlier;
    info.kind = OutputKind::kSharedWithOutput;
    if (other.requires_grad() != tensor.requires_grad() ||
        !contains(meta_of(earlier), meta_of(index)) || !may_be_base(other, tensor))
      continue;
    info.base = earlier;
    info.kind = OutputKind::kViewOfOutput;
    info.is_detached = !bridge::share_history(tensor, other);
    info.counts_own_writes = bridge::counts_own_writes(tensor, other);
    return {};
  }
  if (info.kind != OutputKind::kSharedWithOutput) return {};
  OutputInfo& base = infos_[info.base];
  if (base.kind != OutputKind::kFresh) return {};
  base.kind = OutputKind::kSharedWithOutput;
  base.base = info.base;
  return {};
}

// Two that are differentiated may both be parts of a third, and nothing that comes to one comes to
// the other then.
bool Outputs::may_be_base(const at::Tensor& base, const at::Tensor& view) const {
  return !had_grad_ || !view.requires_grad() || !bridge::share_history(view, base) ||
         bridge::leads_to(view, base) || (base.is_view() && base._base().is_same(view));
}

// A result that is a view of a later one was taken for its base.
void Outputs::show_views_of_their_own_base() {
  for (std::uint32_t later = 0; later < infos_.size(); ++later) {
    const std::uint32_t view = infos_[later].base;
    if (infos_[later].kind != OutputKind::kViewOfOutput || infos_[later].is_detached ||
        !tensors_[view].is_view() || !tensors_[view]._base().is_same(tensors_[later]) ||
        infos_[view].kind != OutputKind::kFresh || !contains(meta_of(later), meta_of(view)))
      continue;
    for (OutputInfo& info : infos_)
      if (info.kind == OutputKind::kViewOfOutput && info.base == view) info.base = later;
    std::swap(infos_[view].kind, infos_[later].kind);
    infos_[view].base = later;
    infos_[later].base = kAbsent;
  }
}

// Of parts that share memory, from `first` on: the tensor that autograd knows all of them as
// views of. Undefined where there is none, or where nothing is to be gained by it.
at::Tensor Outputs::whole_of_parts(std::uint32_t first) {
  at::Tensor whole;
  std::size_t differentiated = 0;
  bool may_be_written = false;
  for (std::size_t i = first; i < infos_.size(); ++i) {
    const OutputInfo& info = infos_[i];
    if (info.kind != OutputKind::kSharedWithOutput || info.base != first || !info.requires_grad)
      continue;
    const at::Tensor& part = tensors_[i];
    if (!whole.defined()) whole = part.is_view() ? at::Tensor(part._base()) : part;
    ++differentiated;
    may_be_written = may_be_written || !info.is_one_of_many;
  }
  if (differentiated < 2 || !may_be_written || !whole.requires_grad() || find_pending(whole))
    return {};
  const ValueNumber value = value_of(session_, whole, "an output");
  for (std::size_t i = first; i < infos_.size(); ++i) {
    const OutputInfo& info = infos_[i];
    if (info.kind != OutputKind::kSharedWithOutput || info.base != first) continue;
    if (info.pending || !contains(session_.tape.values[value].meta, meta_of(i)) ||
        reads_memory_otherwise(values_[i], {value, kNoValue}) ||
        (info.requires_grad && !bridge::share_history(tensors_[i], whole)))
      return {};
  }
  return whole;
}

// The caller may write differentiated parts of one tensor, and what that means for the others
// autograd knows where all are views of one output. Where that is no result, it becomes one that
// nobody is given.
Status Outputs::find_whole_of_parts(ProgramTape* program) {
  if (!had_grad_) return {};
  const std::size_t count = infos_.size();
  for (std::uint32_t first = 0; first < count; ++first) {
    if (infos_[first].kind != OutputKind::kSharedWithOutput || infos_[first].base != first)
      continue;
    const at::Tensor whole = whole_of_parts(first);
    if (!whole.defined()) continue;
    const auto known =
        std::ranges::find_if(tensors_, [&](const at::Tensor& one) { return one.is_same(whole); });
    const auto base = static_cast<std::uint32_t>(known - tensors_.begin());
    if (known == tensors_.end()) {
      BP_RETURN_IF_ERROR(add(whole));
      infos_.back().is_hidden = true;
      if (program) program->add_output(whole, /*is_differentiable=*/true);
    }
    infos_[base].kind = OutputKind::kFresh;
    infos_[base].base = kAbsent;
    for (std::uint32_t i = first; i < infos_.size(); ++i) {
      OutputInfo& info = infos_[i];
      if (info.kind != OutputKind::kSharedWithOutput || info.base != first) continue;
      info.kind = OutputKind::kViewOfOutput;
      info.base = base;
      info.is_detached = !bridge::share_history(tensors_[i], whole);
      info.counts_own_writes = bridge::counts_own_writes(tensors_[i], whole);
    }
    show_views_of_parts(base);
  }
  return {};
}

// A part may be a view of another part, and what comes to it comes to that one.
void Outputs::show_views_of_parts(std::uint32_t whole) {
  std::vector<std::uint32_t> parts;
  for (std::uint32_t i = 0; i < infos_.size(); ++i)
    if (infos_[i].kind == OutputKind::kViewOfOutput && infos_[i].base == whole &&
        infos_[i].same_as == kAbsent && infos_[i].requires_grad && !infos_[i].is_detached &&
        !infos_[i].is_one_of_many)
      parts.push_back(i);
  for (const std::uint32_t view : parts)
    for (const std::uint32_t part : parts)
      if (part != view && contains(meta_of(part), meta_of(view)) &&
          bridge::leads_to(tensors_[view], tensors_[part]) &&
          !bridge::leads_to(tensors_[part], tensors_[view]) &&
          (infos_[view].base == whole ||
           bridge::leads_to(tensors_[part], tensors_[infos_[view].base])))
        infos_[view].base = part;
}

void Outputs::find_shared_counters() {
  for (std::uint32_t i = 0; i < infos_.size(); ++i) {
    if (infos_[i].kind != OutputKind::kSharedWithOutput) continue;
    for (std::uint32_t first = 0; first < i && infos_[i].counts_with == kAbsent; ++first)
      if (infos_[first].kind == OutputKind::kSharedWithOutput &&
          infos_[first].base == infos_[i].base &&
          !bridge::counts_own_writes(tensors_[i], tensors_[first]))
        infos_[i].counts_with = first;
  }
}

}  // namespace backplane::record
