#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "core/base/fork.h"
#include "core/torch/device/devices.h"
#include "core/torch/device/generator.h"
#include "core/torch/device/guard.h"
#include "core/torch/device/memory.h"

namespace backplane::device {

namespace {

using c10::DeviceIndex;

constexpr std::size_t kPageBytes = 4096;

// Host memory that torch takes for pinned: page-aligned, and known by address. The ABI pins where
// it copies.
class PinnedAllocator final : public at::HostAllocator {
 public:
  // The memory is the host's and goes on in a forked child, which needs the lock free.
  static PinnedAllocator& instance() {
    static auto* one = new PinnedAllocator;
    return *one;
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    const std::size_t whole = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    void* memory = std::aligned_alloc(kPageBytes, whole);
    TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "no host memory for ", bytes,
                     " pinned bytes");
    const std::lock_guard lock(mutex_);
    live_[static_cast<const char*>(memory)] = bytes;
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  // Every copy is over with the host's memory when it returns, and nothing is kept.
  bool record_event(void* memory, void* /*context*/, c10::Stream /*stream*/) override {
    return owns(memory);
  }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
  bool owns(const void* data) {
    const auto* at = static_cast<const char*>(data);
    const std::lock_guard lock(mutex_);
    auto after = live_.upper_bound(at);
    return after != live_.begin() && (--after, at < after->first + after->second);
  }

 private:
  static void release(void* memory) {
    if (memory == nullptr) return;
    {
      const std::lock_guard lock(instance().mutex_);
      instance().live_.erase(static_cast<const char*>(memory));
    }
    std::free(memory);
  }
  std::mutex& mutex_ = fork_mutex();  // guards live_
  std::map<const char*, std::size_t> live_;
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() != 0; }
  void init() const override {}
  bool hasPrimaryContext(DeviceIndex index) const override { return find_device(index) != nullptr; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(device_count()); }
  void setCurrentDevice(DeviceIndex index) const override {
    exchange_device(device_at(index).index());
  }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    return exchange_device(index < 0 ? index : device_at(index).index());
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  bool isPinnedPtr(const void* data) const override {
    return PinnedAllocator::instance().owns(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::instance(); }
  c10::Device getDeviceFromPtr(void* data) const override {
    for (int i = 0; i < device_count(); ++i)
      if (TorchDevice& one = device_at(static_cast<DeviceIndex>(i)); one.pool().find(data))
        return one.torch_device();
    TORCH_CHECK(false, "no memory of a backplane device is at ", data);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return make_generator(index > 0 ? device_at(index).index() : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
    TorchDevice& device = device_at(storage.device().index());
    c10::DataPtr made = allocate(device, bytes);
    const std::size_t kept = std::min(bytes, storage.nbytes());
    if (kept != 0) {
      const Memory old = memory_of(storage);
      auto* const block = static_cast<Block*>(made.get_context());
      const bp_range from = old.range(0, kept), to = block->range(0, kept);
      // What is known against the content goes with it.
      const std::uint64_t number = old.block->written.load();
      const bool is_lost = number != 0 && !device.queue().failure_of(number).ok();
      block->written.store(is_lost ? number : device.queue().next_number());
      if (device.shares_host_memory())
        std::memcpy(to.host, from.host, kept);
      else
        check(device.device().copy_async(from, to, runtime::CopyCause::kOther,
                                         device.queue().order()));
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(made));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

}  // namespace

void register_hooks() {
  static auto* hooks = new Hooks;  // torch keeps it
  at::RegisterPrivateUse1HooksInterface(hooks);
  at::setHostAllocator(kDeviceType, &PinnedAllocator::instance());
}

}  // namespace backplane::device
