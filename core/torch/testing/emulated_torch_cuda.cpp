// PyTorch's device `cuda` for a build of PyTorch without CUDA, for tests: tensors over the memory
// of the emulated driver (plugins/cuda/testing), whose operators run on the CPU. Loaded into a
// process once, by torch.ops.load_library; BACKPLANE_CUDA_DRIVER names the driver.
//
// What the real one forgives is not forgiven: memory that is given back is gone, and the host
// cannot touch it.
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/TensorShape.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "plugins/cuda/api.h"

namespace backplane::cuda {

namespace {

const Driver& driver() {
  static const Driver& opened = []() -> const Driver& {
    const char* const path = std::getenv("BACKPLANE_CUDA_DRIVER");
    TORCH_CHECK(path != nullptr, "BACKPLANE_CUDA_DRIVER names no emulated driver");
    void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(library != nullptr, ::dlerror());
    auto& d = *new Driver;
#define BP_ENTRY(name, ...) \
  d.name = reinterpret_cast<Function<__VA_ARGS__>>(::dlsym(library, #name));
    BP_CUDA_DRIVER(BP_ENTRY)
#undef BP_ENTRY
    TORCH_CHECK(d.cuInit(0) == kSuccess, "cuInit");
    return d;
  }();
  return opened;
}

void check(Code code, const char* call) {
  TORCH_CHECK(code == kSuccess, "CUDA error: ", call, " failed with ", code);
}
#define BP_CHECKED(call, ...) check(driver().call(__VA_ARGS__), #call)

class Current {
 public:
  Current() {
    static const ContextHandle primary = [] {
      ContextHandle context = nullptr;
      BP_CHECKED(cuDevicePrimaryCtxRetain, &context, 0);
      return context;
    }();
    driver().cuCtxPushCurrent_v2(primary);
  }
  ~Current() {
    ContextHandle popped = nullptr;
    driver().cuCtxPopCurrent_v2(&popped);
  }
};

// ---- Streams: number 0 is the default one, of which the handle is null.

std::mutex g_mutex;
std::vector<StreamHandle>& streams() {
  static auto& all = *new std::vector<StreamHandle>{nullptr};
  return all;
}
thread_local c10::StreamId t_stream = 0;
thread_local c10::DeviceIndex t_device = 0;

StreamHandle handle_of(c10::StreamId number) {
  const std::lock_guard lock(g_mutex);
  return streams().at(static_cast<std::size_t>(number));
}
StreamHandle current() { return handle_of(t_stream); }

void synchronize_all() {
  const Current context;
  std::vector<StreamHandle> all;
  {
    const std::lock_guard lock(g_mutex);
    all = streams();
  }
  for (StreamHandle const one : all) driver().cuStreamSynchronize(one);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {c10::kCUDA, std::exchange(t_device, device.has_index() ? device.index() : t_device)};
  }
  c10::Device getDevice() const override { return {c10::kCUDA, t_device}; }
  void setDevice(c10::Device device) const override { exchangeDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchangeDevice(device); }
  c10::Stream getStream(c10::Device device) const override { return stream(device, t_stream); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const Current context;
    StreamHandle made = nullptr;
    BP_CHECKED(cuStreamCreate, &made, kNonBlockingStream);
    const std::lock_guard lock(g_mutex);
    streams().push_back(made);
    return stream(device, static_cast<c10::StreamId>(streams().size() - 1));
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(next.device(), std::exchange(t_stream, next.id()));
  }
  void* getStreamNativeHandle(const c10::Stream one) const override { return handle_of(one.id()); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeStream(const c10::Stream& one) const override {
    const Current context;
    BP_CHECKED(cuStreamSynchronize, handle_of(one.id()));
  }

 private:
  static c10::Stream stream(c10::Device device, c10::StreamId number) {
    return c10::Stream(c10::Stream::UNSAFE,
                       {c10::kCUDA, device.has_index() ? device.index() : t_device}, number);
  }
};

// ---- What ATen asks of a build with CUDA.

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return t_device; }
};

// ---- Memory

void give_back(void* address) {
  synchronize_all();
  const Current context;
  driver().cuMemFree_v2(reinterpret_cast<Address>(address));
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::kCUDA, t_device);
    if (bytes == 0) return {nullptr, device};
    const Current context;
    Address address = 0;
    const Code code = driver().cuMemAlloc_v2(&address, bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, code != kOutOfMemory, "CUDA out of memory.");
    check(code, "cuMemAlloc");
    void* const at = reinterpret_cast<void*>(address);
    return {at, at, &give_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    const Current context;
    BP_CHECKED(cuMemcpyDtoDAsync_v2, reinterpret_cast<Address>(to), reinterpret_cast<Address>(from),
               bytes, current());
  }
};
Allocator& allocator() {
  static auto& one = *new Allocator;
  return one;
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

c10::Device chosen(std::optional<c10::Device> device) {
  return device && device->has_index() ? *device : c10::Device(c10::kCUDA, t_device);
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(chosen(device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator(), kKeys,
                                   c10::dtype_or_default(dtype), format);
}
at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(chosen(device));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride), &allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

// ---- Copies: over the host, all of a storage at once.

at::Tensor whole_on_host(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
  at::Tensor host = at::detail::empty_cpu({bytes}, at::kByte);
  if (bytes == 0) return host;
  const Current context;
  BP_CHECKED(cuMemcpyDtoHAsync_v2, host.mutable_data_ptr(),
             reinterpret_cast<Address>(tensor.storage().data()), static_cast<std::size_t>(bytes),
             current());
  BP_CHECKED(cuStreamSynchronize, current());
  return host;
}
at::Tensor as_on_host(const at::Tensor& whole, const at::Tensor& like) {
  at::Tensor host = at::empty({0}, like.options().device(at::kCPU));
  host.set_(whole.storage(), like.storage_offset(), like.sizes(), like.strides());
  host._set_conj(like.is_conj());
  host._set_neg(like.is_neg());
  return host;
}
at::Tensor to_host(const at::Tensor& tensor) {
  return tensor.is_cuda() ? as_on_host(whole_on_host(tensor), tensor) : tensor;
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (self.numel() == 0) return self;
  const at::Tensor from = to_host(source);
  if (!self.is_cuda()) return self.copy_(from);
  const at::Tensor whole = whole_on_host(self);
  as_on_host(whole, self).copy_(from);
  const Current context;
  BP_CHECKED(cuMemcpyHtoDAsync_v2, reinterpret_cast<Address>(self.storage().mutable_data()),
             whole.const_data_ptr(), static_cast<std::size_t>(whole.numel()), current());
  BP_CHECKED(cuStreamSynchronize, current());
  return self;
}
at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  at::Tensor to = target;
  return copy_(to, source, non_blocking);
}
at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, false);
}
at::Scalar local_scalar(const at::Tensor& tensor) { return to_host(tensor).item(); }

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef sizes,
                          std::optional<at::MemoryFormat>) {
  const auto size = C10_AS_INTARRAYREF_SLOW(sizes);
  const std::size_t bytes = at::detail::computeStorageNbytesContiguous(
      size, self.dtype().itemsize(), static_cast<std::size_t>(self.storage_offset()));
  if (bytes > self.storage().nbytes()) {
    const c10::DeviceGuard guard(self.device());
    self.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(allocator().allocate(bytes));
    self.storage().unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}
at::Tensor& set_storage(at::Tensor& self, at::Storage storage, c10::SymInt offset,
                        c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}
at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional(offset->expect_int()) : std::nullopt);
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  try {
    at::native::cpu_fallback(op, stack);
  } catch (const c10::IndexError& error) {
    std::fprintf(stderr, "device-side assert, the context is lost: %s\n", error.what());
    std::abort();
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("copy_", TORCH_FN(copy_));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  library.impl("resize_", TORCH_FN(resize_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  library.impl("view", TORCH_FN(view));
  library.impl("as_strided", TORCH_FN(as_strided));
}

namespace {

const c10::impl::DeviceGuardImplRegistrar g_guard(c10::kCUDA, new Guard);
const bool g_allocator = [] {
  c10::SetAllocator(c10::kCUDA, &allocator(), /*priority=*/255);
  return true;
}();

}  // namespace

}  // namespace backplane::cuda

namespace at {
using CUDAHooks = backplane::cuda::Hooks;  // the name that ATen asks for
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at
