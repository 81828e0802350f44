#include "core/torch/record/value_tensor.h"

#include <ATen/FunctionalTensorWrapper.h>

#include <string_view>
#include <typeinfo>

namespace backplane::record {

namespace {

// The key of the CPU or of plugins' devices, so that composite kernels choose as they would there:
// what PyTorch has for its own devices alone (a library's attention, say) is no operator of
// plugins. TensorImpl adds the autograd keys.
c10::DispatchKeySet keys_of(const at::Tensor& meta, c10::Device device) {
  const c10::DispatchKeySet lazy_bits{c10::DispatchKey::Conjugate, c10::DispatchKey::Negative};
  const c10::Device chosen = is_of_pytorch(device) ? c10::Device(c10::kCPU) : device;
  return c10::DispatchKeySet(
             c10::computeDispatchKey(meta.scalar_type(), c10::Layout::Strided, chosen)) |
         c10::DispatchKeySet(kRecordKey) | (meta.key_set() & lazy_bits);
}

}  // namespace

ValueTensor::ValueTensor(at::Tensor meta, c10::Device device, std::uint64_t session,
                         ValueNumber number)
    : TensorImpl(keys_of(meta, device), meta.dtype(), device),
      meta_(std::move(meta)),
      session_(session),
      number_(number) {
  sizes_and_strides_.set_sizes(meta_.sizes());
  sizes_and_strides_.set_strides(meta_.strides());
  storage_offset_ = meta_.storage_offset();
  refresh_numel();
  refresh_contiguous();
  if (meta_.unsafeGetTensorImpl()->is_wrapped_number()) set_wrapped_number(true);
  set_storage_access_should_throw();
  // Autocast is the device's own affair.
  if (is_of_pytorch(device)) {
    const c10::DispatchKeySet own(
        c10::computeDispatchKey(meta_.scalar_type(), c10::Layout::Strided, device));
    key_set_ =
        (key_set_ - c10::getAutocastRelatedKeySetFromBackend(c10::BackendComponent::CPUBit)) |
        c10::getAutocastRelatedKeySetFromBackend(own.highestBackendKey());
  }
}

template <class Version>
c10::intrusive_ptr<c10::TensorImpl> ValueTensor::copy(Version&& version_counter,
                                                      bool allow_metadata_change) const {
  auto made = c10::make_intrusive<ValueTensor>(meta_, device(), session_, number_);
  if (!made->is_inference()) made->set_version_counter(std::forward<Version>(version_counter));
  made->set_allow_tensor_metadata_change(allow_metadata_change);
  return made;
}

c10::intrusive_ptr<c10::TensorImpl> ValueTensor::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter, bool allow_metadata_change) const {
  return copy(version_counter, allow_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> ValueTensor::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter, bool allow_metadata_change) const {
  return copy(std::move(version_counter), allow_metadata_change);
}

ValueTensor* find_value(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kRecordKey)) return nullptr;
  return dynamic_cast<ValueTensor*>(tensor.unsafeGetTensorImpl());
}

ValueTensor* find_wrapped_value(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (!at::functionalization::impl::isFunctionalTensor(tensor)) return find_value(tensor);
  return find_value(at::functionalization::impl::unsafeGetFunctionalWrapper(tensor)->value());
}

Pending find_pending(const at::Tensor& tensor) {
  Pending pending;
  if (!at::functionalization::impl::isFunctionalTensor(tensor)) return pending;
  for (const auto& step :
       at::functionalization::impl::unsafeGetFunctionalWrapper(tensor)->view_metas()) {
    const at::functionalization::ViewMeta& meta = *step;
    const std::string_view name = typeid(meta).name();  // their classes are in no header
    pending.conjugation ^= name.find("_conj_ViewMeta") != std::string_view::npos;
    pending.negation ^= name.find("_neg_view_ViewMeta") != std::string_view::npos;
  }
  return pending;
}

}  // namespace backplane::record
