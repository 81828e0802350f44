#include "core/torch/record/layout.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "core/torch/record/operands.h"
#include "core/torch/record/session.h"

namespace backplane::record {

namespace {

namespace functional = at::functionalization::impl;

template <class Visit>
void for_each_functional(const OperatorInfo& info, const torch::jit::Stack& stack,
                         const Visit& visit) {
  for_each_operand(info, stack, stack.size() - info.argument_count(),
                   [&](const at::Tensor& tensor, bool is_written) {
                     if (tensor.defined() && functional::isFunctionalTensor(tensor))
                       visit(tensor, is_written);
                   });
}

// The dimensions from the one with the longest steps on, without those of one element.
std::vector<std::size_t> order_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::vector<std::size_t> order;
  for (std::size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1) order.push_back(d);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t d) { return strides[d]; });
  return order;
}

// Whether how this tensor lies says nothing of the program. One over its memory may have moved, and
// may be back once it is taken from the base anew: a view is the new value itself until then.
bool has_moved(Session& session, const at::Tensor& tensor) {
  if (session.has_turned) return true;
  for (auto it = session.moved.begin(); it != session.moved.end();) {
    const Moved& moved = it->second;
    if (!moved.tensor.storage().is_alias_of(tensor.storage())) {
      ++it;
      continue;
    }
    at::FunctionalTensorWrapper* wrapper = functional::unsafeGetFunctionalWrapper(moved.tensor);
    wrapper->apply_updates();
    wrapper->regenerate_from_base();
    if (moved.tensor.strides() != moved.strides) return true;
    it = session.moved.erase(it);
  }
  return false;
}

// But for strides to the only element of a dim, which lead nowhere.
bool lies_so(const at::Tensor& tensor, at::IntArrayRef strides) {
  for (std::size_t d = 0; d < strides.size(); ++d)
    if (tensor.sizes()[d] > 1 && tensor.strides()[d] != strides[d]) return false;
  return true;
}

// A value with these strides, which must leave no gap and no element twice: a copy, or a view where
// only strides to the only element of a dim differ. PyTorch chooses memory formats by those too.
std::optional<at::Tensor> laid_out(const at::Tensor& value, at::IntArrayRef strides) {
  std::vector<std::int64_t> order(strides.size()), back(strides.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [](at::IntArrayRef list, std::int64_t d) {
    return list[static_cast<std::size_t>(d)];
  };
  std::ranges::stable_sort(order, std::greater<>(), [&](std::int64_t d) { return at(strides, d); });
  std::int64_t dense = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
    if (value.size(order[i]) > 1 && at(strides, order[i]) != dense) return std::nullopt;
    dense *= value.size(order[i]);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::AutoDispatchSkipFunctionalize below_functionalization;
  const at::Tensor turned = value.permute(order);
  if (lies_so(value, strides)) return turned.view(turned.sizes()).permute(back);
  return turned.clone(at::MemoryFormat::Contiguous).permute(back);
}

}  // namespace

at::functionalization::FunctionalStorageImpl& functional_storage(const at::Tensor& tensor) {
  return static_cast<at::functionalization::FunctionalStorageImpl&>(
      *tensor.storage().unsafeGetStorageImpl());
}

Layouts::Layouts(const OperatorInfo& info, const torch::jit::Stack& stack) {
  if (info.changes_layout) return;
  for_each_functional(info, stack, [&](const at::Tensor& tensor, bool is_written) {
    if (!is_written && functional_storage(tensor).generation() == 0) return;
    seen_.push_back({tensor, tensor.sizes().vec(), tensor.strides().vec()});
    if (!is_written) return;
    const at::Tensor& base = functional_storage(tensor).base();
    bases_.push_back({tensor, base.sizes().vec(), base.strides().vec()});
  });
}

void Layouts::lay_out_again() const {
  for (const Seen& seen : bases_) {
    at::functionalization::FunctionalStorageImpl& storage = functional_storage(seen.tensor);
    const at::Tensor base = storage.base();
    if (base.numel() == 0 || base.sizes() != seen.sizes || base.strides() == seen.strides) continue;
    const std::optional<at::Tensor> laid = laid_out(base, seen.strides);
    if (!laid) continue;
    at::FunctionalTensorWrapper* wrapper = functional::unsafeGetFunctionalWrapper(seen.tensor);
    storage.add_update(*laid, {});
    wrapper->apply_updates();
    wrapper->regenerate_from_base();
  }
}

void Layouts::note_moves(Session& session) const {
  lay_out_again();
  for (const Seen& seen : seen_) {
    if (seen.tensor.sizes() != seen.sizes) continue;
    const c10::TensorImpl* const impl = seen.tensor.unsafeGetTensorImpl();
    const auto known = session.moved.find(impl);
    const auto& strides = known == session.moved.end() ? seen.strides : known->second.strides;
    if (seen.tensor.strides() == strides) {
      session.moved.erase(impl);
      continue;
    }
    session.has_turned = session.has_turned || order_of(seen.sizes, strides) !=
                                                   order_of(seen.sizes, seen.tensor.strides());
    if (known == session.moved.end()) session.moved.emplace(impl, Moved{seen.tensor, strides});
  }
}

std::string find_moved(Session& session, const OperatorInfo& info, const torch::jit::Stack& stack) {
  const bool takes_strides = info.name == "aten.as_strided";
  std::string found;
  if (!info.depends_on_layout && (!info.writes || session.strided.empty())) return found;
  for_each_functional(info, stack, [&](const at::Tensor& tensor, bool is_written) {
    auto& storage = functional_storage(tensor);
    if (info.depends_on_layout && has_moved(session, tensor))
      found = info.name + " after a write to memory that is not contiguous";
    if (takes_strides) {
      session.strided.insert(&storage);
      const at::Tensor& base = storage.base();
      const bool lies_alike =
          (tensor.is_contiguous() && base.is_contiguous()) ||
          (tensor.sizes() == base.sizes() && tensor.strides() == base.strides());
      if (tensor.numel() != base.numel() || !lies_alike) session.strided_parts.insert(&storage);
    }
    if (!takes_strides && is_written && session.strided.contains(&storage) &&
        !storage.base().is_contiguous())
      found = info.name + " writes memory of which as_strided has taken strides";
  });
  return found;
}

bool is_written(const at::Tensor& tensor) {
  return functional::isFunctionalTensor(tensor) && functional_storage(tensor).generation() != 0;
}

bool lies_as_in_program(const at::Tensor& tensor) {
  Session* session = Session::current();
  return !session || !session->has_moved() || !functional::isFunctionalTensor(tensor) ||
         !has_moved(*session, tensor);
}

}  // namespace backplane::record
