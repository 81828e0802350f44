#include "core/torch/device/devices.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

namespace backplane::device {

namespace {

// Read without a lock: entries are written once, before the count that shows them. Never destroyed.
struct Table {
  std::array<TorchDevice*, kDeviceLimit> devices{};
  std::atomic<int> count{0};
  std::mutex mutex;  // of writers
};
Table& table() {
  static Table& table = *new Table;
  return table;
}

thread_local c10::DeviceIndex t_current = 0;

}  // namespace

TorchDevice::TorchDevice(runtime::Device& device, runtime::DeviceQueue& queue,
                         c10::DeviceIndex index)
    : device_(device),
      queue_(queue),
      index_(index),
      shares_host_memory_(device.binds_host_memory() && !device.has_streams()),
      pool_(device, queue, shares_host_memory_) {}

Result<c10::DeviceIndex> add_device(runtime::Device& device) {
  Table& all = table();
  BP_ASSIGN_OR_RETURN(runtime::DeviceQueue* const queue, device.queue());
  const std::lock_guard lock(all.mutex);
  if (const TorchDevice* known = find_device(device)) return known->index();
  const int index = all.count.load(std::memory_order_relaxed);
  if (index == kDeviceLimit)
    return Status(Code::kUnsupported,
                  "all " + std::to_string(kDeviceLimit) + " indices of the torch device are taken");
  const auto at = static_cast<std::size_t>(index);
  all.devices[at] =
      std::make_unique<TorchDevice>(device, *queue, static_cast<c10::DeviceIndex>(index)).release();
  all.count.store(index + 1, std::memory_order_release);
  return static_cast<c10::DeviceIndex>(index);
}

int device_count() noexcept { return table().count.load(std::memory_order_acquire); }

TorchDevice* find_device(c10::DeviceIndex index) noexcept {
  if (index < 0 || index >= device_count()) return nullptr;
  return table().devices[static_cast<std::size_t>(index)];
}

TorchDevice* find_device(const runtime::Device& device) noexcept {
  for (int i = 0; i < device_count(); ++i)
    if (TorchDevice* one = table().devices[static_cast<std::size_t>(i)]; &one->device() == &device)
      return one;
  return nullptr;
}

TorchDevice& device_at(c10::DeviceIndex index) {
  const c10::DeviceIndex wanted = index < 0 ? t_current : index;
  if (TorchDevice* found = find_device(wanted)) return *found;
  const int count = device_count();
  TORCH_CHECK(count != 0,
              "no plugin's device has an index yet. Ask for one first, as in "
              "torch_backplane.device(\"reference\", 0), or name it in BACKPLANE_DEVICE");
  std::string list;
  for (int i = 0; i < count; ++i)
    list += (i ? ", " : "") + std::string("backplane:") + std::to_string(i) + " is " +
            table().devices[static_cast<std::size_t>(i)]->device().label();
  TORCH_CHECK(false, "there is no device backplane:", static_cast<int>(wanted), "; ", list,
              ". Further ones come with torch_backplane.device(plugin, index)");
}

c10::DeviceIndex current_device() noexcept { return t_current; }

c10::DeviceIndex exchange_device(c10::DeviceIndex index) noexcept {
  const c10::DeviceIndex before = t_current;
  if (index >= 0) t_current = index;
  return before;
}

void check(const Status& status) {
  if (status.ok()) [[likely]]
    return;
  TORCH_CHECK_WITH(OutOfMemoryError, status.code() != Code::kOutOfMemory, status.message());
  TORCH_CHECK(false, status.message(), " (", code_name(status.code()), ")");
}

}  // namespace backplane::device
