#include "core/torch/device/memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>
#include <optional>
#include <utility>

namespace backplane::device {

namespace {

constexpr int kNoCause = -1;
thread_local int t_cause = kNoCause;

void give_back(void* context) {
  if (auto* block = static_cast<Block*>(context); block != nullptr && !in_bad_fork())
    block->pool->give(block);
}

using Stats = c10::CachingDeviceAllocator::DeviceStats;

template <class Stat>
void set_stat(Stat& all, std::uint64_t current, std::uint64_t peak) {
  all[0].current = static_cast<std::int64_t>(current);  // 0: of all block sizes together
  all[0].peak = static_cast<std::int64_t>(peak);
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    return device::allocate(device_at(-1), bytes);
  }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    static_cast<void>(target);
    static_cast<void>(source);
    TORCH_CHECK(bytes == 0, "memory of the backplane device is copied between tensors only");
  }
  bool initialized() override { return device_count() != 0; }
  void emptyCache(c10::MempoolId_t /*pool*/ = {0, 0}) override {
    for (int i = 0; i < device_count(); ++i)
      device_at(static_cast<c10::DeviceIndex>(i)).pool().trim();
  }
  // One queue per device: memory is used again in its order.
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) override {}
  Stats getDeviceStats(c10::DeviceIndex index) override {
    const PoolCounters counters = device_at(index).pool().counters();
    Stats stats;
    set_stat(stats.allocated_bytes, counters.allocated_bytes, counters.allocated_peak_bytes);
    set_stat(stats.active_bytes, counters.allocated_bytes, counters.allocated_peak_bytes);
    set_stat(stats.reserved_bytes, counters.reserved_bytes, counters.reserved_peak_bytes);
    stats.num_alloc_retries = static_cast<std::int64_t>(counters.retry_count);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*index*/) override {}
  void resetPeakStats(c10::DeviceIndex index) override { device_at(index).pool().reset_peaks(); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex index) override {
    TorchDevice& device = device_at(index);
    const std::size_t total = device.device().info().memory_bytes;
    const std::size_t used = device.pool().counters().reserved_bytes;
    return {total > used ? total - used : 0, total};
  }
};

}  // namespace

c10::Allocator* allocator() {
  static auto* one = new Allocator;  // never destroyed: tensors may outlive static objects
  return one;
}

void differentiate_in_this_thread() noexcept {
  if (c10::AutogradState& state = c10::AutogradState::get_tls_state();
      state.get_multithreading_enabled())
    state.set_multithreading_enabled(false);
}

c10::DataPtr allocate(TorchDevice& device, std::uint64_t bytes) {
  check_process();
  if (!device.is_hidden()) differentiate_in_this_thread();
  Block* block = unwrap(device.pool().take(bytes));
  return {block ? block->address : nullptr, block, &give_back, device.torch_device()};
}

bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDeviceType;
}

bool is_resident(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return false;
  return is_on_device(tensor) || find_owner(tensor.device()) != nullptr;
}

TorchDevice& owner_of(const at::Tensor& tensor) { return owner_at(tensor.device()); }

Memory memory_of(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get() == nullptr) return {};
  const std::uint64_t bytes = storage.nbytes();
  if (data.get_deleter() == &give_back) [[likely]]
    return {static_cast<Block*>(data.get_context()), 0, bytes};
  Block* block = owner_at(storage.device()).pool().find(data.get());
  TORCH_CHECK(block != nullptr, "a tensor on ", storage.device(),
              " has memory that the backplane device did not allocate; copy the data into a tensor "
              "made with torch.empty(..., device=...)");
  return {block,
          static_cast<std::uint64_t>(static_cast<const std::byte*>(data.get()) - block->address),
          bytes};
}

Extent extent_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto item = static_cast<std::uint64_t>(tensor.element_size());
  return {static_cast<std::uint64_t>(tensor.storage_offset()) * item,
          static_cast<std::uint64_t>(last + 1) * item};
}

bp_range range_of(const at::Tensor& tensor) {
  const Extent extent = extent_of(tensor);
  if (const TorchDevice& owner = owner_of(tensor); owner.is_adopted()) {
    if (extent.size_bytes == 0) return {};
    const auto start = reinterpret_cast<std::uint64_t>(tensor.storage().data());
    return {owner.imported_memory(), nullptr, start + extent.offset_bytes, extent.size_bytes};
  }
  return memory_of(tensor.storage()).range(extent.offset_bytes, extent.size_bytes);
}

void mark_written(const at::Tensor& tensor) {
  if (!is_on_device(tensor)) return;
  if (Block* const block = memory_of(tensor.storage()).block)
    block->written.store(owner_of(tensor).queue().next_number(), std::memory_order_relaxed);
}

Status check_readable(const at::Tensor& tensor) {
  if (!is_on_device(tensor)) return {};
  const Block* const block = memory_of(tensor.storage()).block;
  const std::uint64_t number = block ? block->written.load(std::memory_order_relaxed) : 0;
  return number == 0 ? Status() : owner_of(tensor).queue().failure_of(number);
}

std::int64_t bind_distance(const at::Tensor& tensor) {
  const TorchDevice& device = owner_of(tensor);
  // Memory of the host and of PyTorch's devices is bound at any element.
  if (device.shares_host_memory() || device.is_adopted() || tensor.numel() == 0) return 0;
  const std::uint64_t start =
      memory_of(tensor.storage()).offset_bytes + extent_of(tensor).offset_bytes;
  return static_cast<std::int64_t>(start % device.device().alignment_bytes() /
                                   static_cast<std::uint64_t>(tensor.element_size()));
}

namespace {

at::Tensor over_storage(c10::Storage storage, at::IntArrayRef sizes, at::IntArrayRef strides,
                        std::int64_t storage_offset, at::ScalarType dtype) {
  const c10::DispatchKey key =
      c10::computeDispatchKey(dtype, c10::Layout::Strided, storage.device());
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(dtype));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, storage_offset);
  return made;
}

}  // namespace

at::Tensor make_empty(c10::Device device, at::IntArrayRef sizes, at::IntArrayRef strides,
                      at::ScalarType dtype) {
  if (device.is_cpu()) return at::detail::empty_strided_cpu(sizes, strides, dtype);
  const std::size_t bytes = at::detail::computeStorageNbytes(
      sizes, strides, c10::elementSize(dtype), /*storage_offset=*/0);
  const auto storage_of = [&](c10::DataPtr data, c10::Allocator* from) {
    return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), from, /*resizable=*/true));
  };
  if (device.type() == kDeviceType)
    return over_storage(storage_of(allocate(owner_at(device), bytes), allocator()), sizes, strides,
                        0, dtype);
  const c10::DeviceGuard current(device);  // its allocator gives memory there
  c10::Allocator* const theirs = c10::GetAllocator(device.type());
  return over_storage(storage_of(theirs->allocate(bytes), theirs), sizes, strides, 0, dtype);
}

at::Tensor over_memory(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                       std::int64_t storage_offset, std::optional<at::ScalarType> dtype) {
  return over_storage(tensor.storage(), sizes, strides, storage_offset,
                      dtype.value_or(tensor.scalar_type()));
}

at::Tensor whole_storage(const at::Tensor& tensor) {
  const auto count = static_cast<std::int64_t>(tensor.storage().nbytes() / tensor.element_size());
  return over_memory(tensor, {count}, {1}, 0);
}

bool covers_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.storage().nbytes() == tensor.nbytes();
}

bool shares_block(const at::Tensor& a, const at::Tensor& b) {
  const Block* block = memory_of(a.storage()).block;
  return block != nullptr && block == memory_of(b.storage()).block;
}

void take_content(const at::Tensor& target, at::Tensor source) {
  TORCH_INTERNAL_ASSERT(target.storage().nbytes() == source.storage().nbytes() &&
                        target.device() == source.device());
  const Memory to = memory_of(target.storage()), from = memory_of(source.storage());
  if (to.block == nullptr) return;
  const std::uint64_t bytes = target.storage().nbytes();
  const bool is_whole = to.offset_bytes == 0 && to.block->asked_bytes == bytes;
  if (to.block->buffer && is_whole && to.block->bytes == from.block->bytes &&
      from.block->asked_bytes == bytes) {
    std::swap(to.block->buffer, from.block->buffer);
    to.block->written.store(from.block->written.load());
    return;
  }
  TorchDevice& device = owner_of(target);
  to.block->written.store(from.block->written.load());
  const bp_range source_range = from.range(0, bytes), target_range = to.range(0, bytes);
  if (device.shares_host_memory())
    std::memcpy(target_range.host, source_range.host, bytes);
  else
    check(device.device().copy_async(source_range, target_range, runtime::CopyCause::kOther,
                                     device.queue().order()));
}

at::Tensor host_alias(const at::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(owner_of(tensor).shares_host_memory());
  static_cast<void>(range_of(tensor));  // there is such memory
  at::Tensor made = at::from_blob(
      tensor.storage().mutable_data(), tensor.sizes(), tensor.strides(), tensor.storage_offset(),
      [](void*) {}, at::TensorOptions().dtype(tensor.scalar_type()));
  made._set_conj(tensor.is_conj());
  made._set_neg(tensor.is_neg());
  return made;
}

CauseScope::CauseScope(runtime::CopyCause cause)
    : before_(std::exchange(t_cause, static_cast<int>(cause))) {}
CauseScope::~CauseScope() { t_cause = before_; }
runtime::CopyCause CauseScope::current(runtime::CopyCause otherwise) {
  return t_cause == kNoCause ? otherwise : static_cast<runtime::CopyCause>(t_cause);
}

}  // namespace backplane::device
