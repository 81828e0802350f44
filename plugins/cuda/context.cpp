#include "context.h"

namespace backplane::cuda {

Context::~Context() {
  programs_.clear();
  if (context_ == nullptr) return;
  {
    const Current current(context_);
    if (stream_ != nullptr) driver().cuStreamDestroy_v2(stream_);
  }
  blas_.reset();
  faults_.reset();
  pool_.reset();
  driver().cuDevicePrimaryCtxRelease_v2(device_.device);
}

Status Context::open() {
  const std::lock_guard lock(open_mutex_);
  if (is_open()) return {};
  if (context_ == nullptr)
    BP_CUDA_RETURN_IF_ERROR(cuDevicePrimaryCtxRetain, &context_, device_.device);
  const Current current(context_);
  StreamHandle stream = nullptr;
  BP_CUDA_RETURN_IF_ERROR(cuStreamCreate, &stream, kNonBlockingStream);
  pool_ = std::make_shared<Pool>(context_, device_.memory_limit_bytes);
  faults_ = std::make_shared<FaultPool>(context_);
  if (device_.kernels.has_library_products) blas_ = BlasLibrary::find();
  stream_ = stream;
  return {};
}

Status Context::check() const {
  if (!lost_.load(std::memory_order_acquire)) [[likely]]
    return {};
  return {BP_DEVICE_LOST, "the device " + device_.name + " was lost (" + lost_with_ +
                              "); start the program anew to use it"};
}

Status Context::failure(const char* call, Code code) {
  Status status = driver_error(call, code);
  if (status.code() != bp_code{BP_DEVICE_LOST}) return status;
  {
    const std::lock_guard lock(open_mutex_);
    if (!lost_.load(std::memory_order_relaxed)) {
      lost_with_ = status.message();
      lost_.store(true, std::memory_order_release);
    }
  }
  return check();
}

Result<std::shared_ptr<std::byte>> Context::constant(const void* data, std::uint64_t bytes) {
  auto memory = Pool::share(pool_, std::max<std::uint64_t>(bytes, 1));
  if (!memory.ok()) return memory.status();
  {
    const Current current(context_);
    Code code =
        driver().cuMemcpyHtoDAsync_v2(address_of((*memory)->address()), data, bytes, stream_);
    if (code == kSuccess) code = driver().cuStreamSynchronize(stream_);
    if (code != kSuccess) return failure("cuMemcpyHtoDAsync", code);
  }
  return std::shared_ptr<std::byte>(*memory, (*memory)->address());
}

std::shared_ptr<const kernels::LibraryProduct> Context::library_product(
    const kernels::ProductShape& shape) {
  if (blas_ == nullptr) return nullptr;
  const Current current(context_);
  return BlasProduct::make(blas_, shape);
}

}  // namespace backplane::cuda
