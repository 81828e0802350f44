// The tensor that a program under recording computes with: it claims the real device, has a shape
// and strides but no memory, and names a value of the tape.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <limits>
#include <utility>

namespace backplane::record {

using ValueNumber = std::uint32_t;  // index into Tape::values
inline constexpr ValueNumber kNoValue = std::numeric_limits<ValueNumber>::max();

// The dispatch key whose boxed fallback is the recorder: below Functionalize and Autograd, without
// kernel or fallback of PyTorch's own up to 2.13.
inline constexpr c10::DispatchKey kRecordKey = c10::DispatchKey::Fake;
// Above autograd, used by nothing in PyTorch: holds the decompositions of a recording.
inline constexpr c10::DispatchKey kDecomposeKey = c10::DispatchKey::DeferredInit;

// Whether a device is PyTorch's own and not the CPU: cuda, say.
inline bool is_of_pytorch(c10::Device device) {
  return !device.is_cpu() && device.type() != c10::DeviceType::PrivateUse1;
}

class ValueTensor final : public c10::TensorImpl {
 public:
  // `meta`: a tensor on the meta device with the value's shape, strides and offset.
  ValueTensor(at::Tensor meta, c10::Device device, std::uint64_t session, ValueNumber number);

  const at::Tensor& meta() const { return meta_; }
  std::uint64_t session() const { return session_; }
  ValueNumber number() const { return number_; }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter, bool allow_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                         bool allow_metadata_change) const override;

 private:
  template <class Version>
  c10::intrusive_ptr<TensorImpl> copy(Version&& version_counter, bool allow_metadata_change) const;

  at::Tensor meta_;
  std::uint64_t session_;
  ValueNumber number_;
};

// Null where `tensor` is undefined or another kind of tensor.
ValueTensor* find_value(const at::Tensor& tensor);
// As find_value, but looks into a functional wrapper.
ValueTensor* find_wrapped_value(const at::Tensor& tensor);

// What PyTorch would leave pending on a tensor of a program. Values of a recording have it done.
struct Pending {
  bool conjugation = false, negation = false;
  explicit operator bool() const { return conjugation || negation; }
};
Pending find_pending(const at::Tensor& tensor);

}  // namespace backplane::record
