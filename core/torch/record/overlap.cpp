#include "core/torch/record/overlap.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/FunctionalTensorWrapper.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/torch/record/dispatch.h"
#include "core/torch/record/layout.h"
#include "core/torch/record/operands.h"

namespace backplane::record {

namespace {

namespace functional = at::functionalization::impl;

// Integers within bounds, times their factors, that add up to a number.
class Sum {
 public:
  void add(std::int64_t factor, std::int64_t low, std::int64_t high) {
    if (low != high && factor != 0) terms_.push_back({factor, low, high, 0, 0});
  }

  bool reaches(std::int64_t wanted) {
    prepare();
    return reaches(0, wanted);
  }

  // Other than with all integers zero.
  bool reaches_zero_otherwise() {
    prepare();
    // The first that is not zero, without loss of generality above it.
    for (std::size_t i = 0; i < terms_.size(); ++i)
      for (std::int64_t n = 1; n <= terms_[i].high; ++n) {
        if (n * terms_[i].factor + lowest_behind(i) > 0) break;
        if (reaches(i + 1, -n * terms_[i].factor)) return true;
      }
    return false;
  }

 private:
  struct Term {
    std::int64_t factor, low, high;  // factor > 0
    std::int64_t least, most;        // of the sum of this one and those behind
  };
  static constexpr int kMostSteps = 20'000;

  void prepare() {
    std::ranges::sort(terms_, [](const Term& a, const Term& b) { return a.factor > b.factor; });
    std::int64_t least = 0, most = 0;
    for (std::size_t i = terms_.size(); i-- > 0;) {
      terms_[i].least = least += terms_[i].factor * terms_[i].low;
      terms_[i].most = most += terms_[i].factor * terms_[i].high;
    }
  }

  std::int64_t lowest_behind(std::size_t i) const {
    return i + 1 < terms_.size() ? terms_[i + 1].least : 0;
  }
  std::int64_t highest_behind(std::size_t i) const {
    return i + 1 < terms_.size() ? terms_[i + 1].most : 0;
  }

  static std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
    return a / b - (a % b != 0 && a < 0);
  }

  bool reaches(std::size_t i, std::int64_t wanted) {
    if (++steps_ > kMostSteps) return true;
    if (i == terms_.size()) return wanted == 0;
    const Term& term = terms_[i];
    const std::int64_t first =
        std::max(term.low, -floor_divided(highest_behind(i) - wanted, term.factor));
    const std::int64_t last =
        std::min(term.high, floor_divided(wanted - lowest_behind(i), term.factor));
    for (std::int64_t n = first; n <= last; ++n)
      if (reaches(i + 1, wanted - n * term.factor)) return true;
    return false;
  }

  std::vector<Term> terms_;
  int steps_ = 0;
};

bool is_empty(const Elements& elements) { return std::ranges::count(elements.sizes, 0) > 0; }

struct Operand {
  at::Tensor tensor;
  bool is_written = false;

  Elements elements() const { return {tensor.storage_offset(), tensor.sizes(), tensor.strides()}; }
};

bool is_same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

// Those that have memory.
std::vector<Operand> operands_of(const OperatorInfo& info, const torch::jit::Stack& stack) {
  std::vector<Operand> operands;
  for_each_operand(info, stack, stack.size() - info.argument_count(),
                   [&](const at::Tensor& tensor, bool is_written) {
                     if (tensor.defined() && tensor.has_storage())
                       operands.push_back({tensor, is_written});
                   });
  return operands;
}

// A write goes into the base through the inverse of each view between the two. Where an element of
// the base is shown twice, or left out by windows, functionalization has no inverse that is right.
bool has_no_inverse(const at::Tensor& tensor) {
  if (!functional::isFunctionalTensor(tensor)) return false;
  const at::FunctionalTensorWrapper* wrapper = functional::unsafeGetFunctionalWrapper(tensor);
  if (wrapper->view_metas().empty()) return false;
  // Functionalization raises where as_strided is one of several, and a program may catch that.
  if (wrapper->view_metas().size() > 1 &&
      std::ranges::any_of(wrapper->view_metas(),
                          [](const auto& step) { return step->is_as_strided; }))
    return true;
  const BelowRecording below;
  const at::Tensor& base = functional_storage(tensor).base();
  at::Tensor view =
      at::detail::empty_strided_meta(base.sizes(), base.strides(), base.scalar_type());
  return std::ranges::any_of(wrapper->view_metas(), [&](const auto& step) {
    const at::Tensor whole = std::exchange(view, step->forward(view));
    // Of all views with one more dimension unfold alone leaves elements out, between its windows;
    // its inverse takes them for zeros.
    const bool has_gaps = !step->is_as_strided && view.dim() > whole.dim() &&
                          view.scalar_type() == whole.scalar_type() && view.numel() < whole.numel();
    return shows_element_twice(whole) || has_gaps;
  });
}

// Offsets and strides count elements, whose sizes may differ.
bool may_share_element(const Operand& a, const Operand& b) {
  return a.tensor.element_size() != b.tensor.element_size() ||
         share_element(a.elements(), b.elements());
}

// Of as_strided and what is made of it: a value of a graph is its own elements alone, not what lies
// around or between them.
bool leaves_operand(const OperatorInfo& info, const torch::jit::Stack& stack) {
  const bool scatters = info.name == "aten.as_strided_scatter";
  if (!scatters && info.name != "aten.as_strided_copy" && info.name != "aten.as_strided")
    return false;
  const std::size_t base = stack.size() - info.argument_count(), first = base + (scatters ? 2 : 1);
  const at::Tensor& self = stack[base].toTensor();
  const bool is_view = functional::isFunctionalTensor(self) &&
                       !functional::unsafeGetFunctionalWrapper(self)->view_metas().empty();
  // Beyond a whole storage there is nothing: PyTorch raises.
  if (!is_view && self.storage_offset() == 0 && self.is_non_overlapping_and_dense()) return false;
  const auto sizes = stack[first].toIntVector(), strides = stack[first + 1].toIntVector();
  const c10::IValue& offset = stack[first + 2];
  std::int64_t last = offset.isNone() ? 0 : offset.toInt() - self.storage_offset();
  if (!self.is_non_overlapping_and_dense() || last < 0) return true;
  for (std::size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
  return last >= self.numel() && std::ranges::count(sizes, 0) == 0;
}

// It writes through a view that is none of its operands.
bool scatters_twice(const OperatorInfo& info, const torch::jit::Stack& stack) {
  if (info.name != "aten.as_strided_scatter") return false;
  const std::size_t first = stack.size() - info.argument_count() + 2;
  const auto sizes = stack[first].toIntVector(), strides = stack[first + 1].toIntVector();
  return sizes.size() == strides.size() && has_element_twice({0, sizes, strides});
}

// PyTorch's normal_ draws in another way where memory has gaps, which a value of a graph has not.
bool draws_beside_gaps(const OperatorInfo& info, const torch::jit::Stack& stack) {
  if (info.name != "aten.normal_") return false;
  const at::Tensor& self = stack[stack.size() - info.argument_count()].toTensor();
  return !self.is_non_overlapping_and_dense();
}

// Whether what an operator writes by out= has the sizes of its results, as far as it runs on
// tensors without memory.
bool outs_fit(const OperatorInfo& info, const torch::jit::Stack& stack) {
  const BelowRecording below;
  torch::jit::Stack copy(stack.end() - static_cast<std::ptrdiff_t>(info.argument_count()),
                         stack.end());
  std::vector<at::Tensor> outs;
  const auto& arguments = info.handle.schema().arguments();
  for (std::size_t i = 0; i < copy.size(); ++i) {
    if (copy[i].isTensor() && copy[i].toTensor().defined()) {
      const at::Tensor tensor = copy[i].toTensor();
      const bool is_out = arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
      if (is_out) outs.push_back(tensor);
      copy[i] = is_out ? at::detail::empty_meta({0}, tensor.scalar_type()) : meta_like(tensor);
    } else if (copy[i].isTensorList()) {
      c10::List<at::Tensor> metas;
      for (const at::Tensor& tensor : copy[i].toTensorVector()) metas.push_back(meta_like(tensor));
      copy[i] = std::move(metas);
    }
  }
  try {
    info.handle.callBoxed(&copy);
  } catch (const std::exception&) {
    return true;
  }
  for (std::size_t i = 0; i < copy.size() && i < outs.size(); ++i)
    if (copy[i].isTensor() && copy[i].toTensor().sizes() != outs[i].sizes()) return false;
  return true;
}

}  // namespace

bool share_element(const Elements& a, const Elements& b) {
  if (is_empty(a) || is_empty(b)) return false;
  Sum sum;
  for (std::size_t d = 0; d < a.sizes.size(); ++d) sum.add(a.strides[d], 0, a.sizes[d] - 1);
  for (std::size_t d = 0; d < b.sizes.size(); ++d) sum.add(b.strides[d], 1 - b.sizes[d], 0);
  return sum.reaches(b.offset - a.offset);
}

bool has_element_twice(const Elements& elements) {
  if (is_empty(elements)) return false;
  Sum sum;
  for (std::size_t d = 0; d < elements.sizes.size(); ++d) {
    const std::int64_t last = elements.sizes[d] - 1;
    if (elements.strides[d] == 0 && last > 0) return true;
    sum.add(elements.strides[d], -last, last);
  }
  return sum.reaches_zero_otherwise();
}

bool shows_element_twice(const at::Tensor& tensor) {
  return !tensor.is_non_overlapping_and_dense() &&
         has_element_twice({tensor.storage_offset(), tensor.sizes(), tensor.strides()});
}

std::string find_overlap(const OperatorInfo& info, const torch::jit::Stack& stack) {
  // Where its result is taken from a base anew, PyTorch reads an operand that is not there.
  if (info.name == "aten.slice_inverse") return info.name + " is for functionalization alone";
  if (leaves_operand(info, stack)) return info.name + " looks at memory around its operand";
  if (scatters_twice(info, stack)) return info.name + " writes an element twice";
  if (draws_beside_gaps(info, stack)) return info.name + " draws into memory with gaps";
  if (!info.writes) return {};
  const std::vector<Operand> operands = operands_of(info, stack);
  for (const Operand& written : operands) {
    if (!written.is_written) continue;
    if (has_no_inverse(written.tensor))
      return info.name + " writes through a view that shows an element twice or leaves some out";
    if (shows_element_twice(written.tensor)) return info.name + " writes an element twice";
    for (const Operand& other : operands) {
      if (&other == &written || !other.tensor.is_alias_of(written.tensor)) continue;
      const bool is_same = is_same_view(other.tensor, written.tensor);
      // What reads an element and writes it before it reads the next may have both in one place.
      const bool may_be_same = info.is_pointwise && !other.is_written;
      if (is_same ? !may_be_same : may_share_element(other, written))
        return info.name + " writes elements of another operand";
    }
  }
  return {};
}

std::string find_turned_beside_views(const OperatorInfo& info, const torch::jit::Stack& stack) {
  if (!info.changes_layout || !at::GradMode::is_enabled()) return {};
  const c10::IValue& turned = stack[stack.size() - info.argument_count()];
  if (!turned.isTensor() || !functional::isFunctionalTensor(turned.toTensor()) ||
      !turned.toTensor().requires_grad() || turned.toTensor().storage().use_count() == 1)
    return {};
  return info.name + " turns a tensor whose memory others show, and gradients flow";
}

SizesOfOuts::SizesOfOuts(const OperatorInfo& info, const torch::jit::Stack& stack)
    : name_(info.name) {
  if (!info.writes || info.changes_layout) return;
  const std::vector<Operand> operands = operands_of(info, stack);
  if (info.out_count == 0) {  // in place: PyTorch refuses what functionalization makes larger
    for (const Operand& written : operands)
      if (written.is_written) outs_.push_back({written.tensor, written.tensor.sizes().vec()});
    return;
  }
  for (const Operand& written : operands) {
    if (!written.is_written) continue;
    const bool is_read = std::ranges::any_of(operands, [&](const Operand& other) {
      return !other.is_written && is_same_view(other.tensor, written.tensor);
    });
    const bool is_view =
        functional::isFunctionalTensor(written.tensor) &&
        !functional::unsafeGetFunctionalWrapper(written.tensor)->view_metas().empty();
    if (is_read || is_view || written.tensor.numel() > 0)
      outs_.push_back({written.tensor, written.tensor.sizes().vec()});
  }
  is_fitting_ = outs_.empty() || outs_fit(info, stack);
}

std::string SizesOfOuts::find_resized() const {
  for (const auto& [tensor, sizes] : outs_)
    if (!is_fitting_ || tensor.sizes() != sizes) return name_ + " resizes what it writes";
  return {};
}

}  // namespace backplane::record
