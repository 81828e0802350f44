#include "core/torch/device/factories.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/torch/bridge/new_memory.h"
#include "core/torch/device/copy.h"
#include "core/torch/device/memory.h"

namespace backplane::device {

namespace {

using c10::SymInt;
using c10::SymIntArrayRef;

// The given device or the current one becomes current, for the allocator.
class DeviceScope {
 public:
  explicit DeviceScope(std::optional<c10::Device> device)
      : before_(
            exchange_device(device_at(device ? device->index() : c10::DeviceIndex{-1}).index())) {}
  ~DeviceScope() { exchange_device(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  c10::DeviceIndex before_;
};

void check_options(std::optional<at::Layout> layout, std::optional<bool> pinned) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == at::kStrided,
                              "the backplane device holds strided tensors only, not ", *layout);
  TORCH_CHECK(!pinned || !*pinned, "only tensors of the CPU can be pinned");
}

at::Tensor filled(at::Tensor made) {
  if (bridge::fills_new_memory()) [[unlikely]]
    at::native::fill_empty_deterministic_(made);
  return made;
}

at::Tensor empty(SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  check_options(layout, pinned);
  const DeviceScope scope(device);
  return filled(at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), allocator(),
                                          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                          c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(SymIntArrayRef size, SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pinned) {
  check_options(layout, pinned);
  const DeviceScope scope(device);
  return filled(at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), allocator(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype)));
}

// As PyTorch does for the CPU: what has no elements asks for no memory.
void grow_storage(const at::Storage& storage, at::IntArrayRef sizes,
                  at::OptionalIntArrayRef strides, std::size_t item, std::size_t start) {
  const std::size_t bytes = strides
                                ? at::detail::computeStorageNbytes(sizes, *strides, item, start)
                                : at::detail::computeStorageNbytesContiguous(sizes, item, start);
  if (c10::multiply_integers(sizes) != 0 && bytes > storage.nbytes())
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, bytes);
}

const at::Tensor& resize(const at::Tensor& self, SymIntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  const std::size_t bytes_before = self.storage().nbytes();
  if (self.sizes() != sizes) {
    at::detail::check_size_nonnegative(sizes);
    grow_storage(self.storage(), sizes, std::nullopt, impl->dtype().itemsize(),
                 static_cast<std::size_t>(impl->storage_offset()));
    impl->set_sizes_contiguous(sizes);
  }
  if (format) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format", *format);
    impl->empty_tensor_restride(*format);
  }
  if (bridge::fills_new_memory()) [[unlikely]]
    at::native::fill_resize_deterministic_(self, static_cast<std::int64_t>(bytes_before));
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  return at::native::set_(self, std::move(source));
}

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, SymInt offset,
                               SymIntArrayRef size, SymIntArrayRef stride) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  TORCH_CHECK(source.device() == self.device(), "a tensor on ", self.device(),
              " cannot take a storage on ", source.device());
  const std::int64_t start = offset.expect_int();
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size), strides = C10_AS_INTARRAYREF_SLOW(stride);
  const at::OptionalIntArrayRef given =
      strides.empty() && !sizes.empty() ? std::nullopt : at::OptionalIntArrayRef(strides);
  // Nothing changes of a tensor that is refused.
  TORCH_CHECK(start >= 0, "Tensor: invalid storage offset ", start);
  TORCH_CHECK(!given || sizes.size() == given->size(), "unequal size length (", sizes.size(),
              ") and stride length (", strides.size(), ")");
  at::detail::check_size_nonnegative(sizes);
  TORCH_CHECK(std::ranges::all_of(strides, [](std::int64_t one) { return one >= 0; }),
              "Negative strides are not supported, got ", strides);
  // A tensor that lies so already keeps its strides, and finds room or is refused.
  const bool lies_so = impl->sizes() == sizes && (!given || impl->strides() == *given);
  if (lies_so)
    at::native::checkInBoundsForStorage(sizes, impl->strides(), start, impl->dtype(), source);
  else
    grow_storage(source, sizes, given, impl->dtype().itemsize(), static_cast<std::size_t>(start));
  impl->set_storage_keep_dtype(std::move(source));
  if (lies_so) {
    impl->set_storage_offset(start);
  } else if (given) {
    impl->set_sizes_and_strides(sizes, strides, start);
  } else {
    impl->set_storage_offset(start);
    impl->set_sizes_contiguous(sizes);
  }
  return self;
}

// One queue per device: memory is used again in its order, whatever stream is named.
void record_stream(at::Tensor& self, at::Stream stream) {
  TORCH_CHECK(stream.device() == self.device(), "a stream of ", stream.device(),
              " cannot be recorded for a tensor on ", self.device());
}

// A tensor may become one of the device and back while autograd, an optimizer and weak references
// have it, as between the CPU and CUDA: PyTorch asks this of every assignment to `data`, which
// modules move their parameters with. Both kinds are plain memory with strides.
bool can_become(const at::Tensor& self, const at::Tensor& from) {
  const auto is_plain = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested() &&
           (is_on_device(tensor) || tensor.device().is_cpu());
  };
  return is_plain(self) && is_plain(from);
}

// As the CPU's kernel: of sizes that fit, no element twice, and no part of itself.
at::Tensor checked_copy_from(const at::Tensor& source, const at::Tensor& target,
                             bool non_blocking) {
  if (target.sizes() != source.sizes()) {
    const std::vector<std::int64_t> sizes = at::infer_size(target.sizes(), source.sizes());
    TORCH_CHECK(target.sizes() == sizes, "output with shape ", target.sizes(),
                " doesn't match the broadcast shape ", at::IntArrayRef(sizes));
  }
  at::assert_no_internal_overlap(target);
  if (is_on_device(source) && is_on_device(target)) at::assert_no_partial_overlap(target, source);
  return copy_from(source, target, non_blocking);
}

at::Tensor& set_nothing(at::Tensor& self) {
  const DeviceScope scope(self.device());
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(
      c10::Storage(c10::Storage::use_byte_size_t(), 0, allocator(), /*resizable=*/true));
  impl->set_storage_offset(0);
  impl->set_sizes_contiguous({0});
  return self;
}

}  // namespace

void register_memory_kernels(torch::Library& library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("resize_", TORCH_FN(resize));
  library.impl("set_.source_Storage", TORCH_FN(set_storage));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  library.impl("set_", TORCH_FN(set_nothing));
  library.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("view.dtype", TORCH_FN(at::native::view_dtype));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  library.impl("_copy_from", TORCH_FN(checked_copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(read_scalar));
  library.impl("record_stream", TORCH_FN(record_stream));
  library.impl("_has_compatible_shallow_copy_type", TORCH_FN(can_become));
}

}  // namespace backplane::device
