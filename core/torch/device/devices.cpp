#include "core/torch/device/devices.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/base/fork.h"
#include "core/torch/bridge/errors.h"
#include "core/torch/device/native_stream.h"

namespace backplane::device {

namespace {

// Read without a lock: entries are written once, before the count that shows them. Never destroyed.
struct Table {
  std::array<TorchDevice*, kDeviceLimit> devices{};
  std::atomic<int> count{0};
  std::atomic<int> hidden_count{0};  // from the end of the array
  std::array<TorchDevice*, kDeviceLimit> adopted{};
  std::atomic<int> adopted_count{0};
  std::mutex& mutex = fork_mutex();  // of writers
};
Table& table() {
  static Table& table = *new Table;
  return table;
}

thread_local c10::DeviceIndex t_current = 0;
std::atomic<bool> g_in_bad_fork{false};

// Locks that other threads held are never given back in the child, so it takes none.
void watch_forks() {
  static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { g_in_bad_fork.store(true, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

std::optional<c10::Device> parse_device(const std::string& name) {
  try {
    return c10::Device(name);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// Under the table's lock.
Status check_room(const Table& table) {
  if (table.count.load(std::memory_order_relaxed) +
          table.hidden_count.load(std::memory_order_relaxed) <
      kDeviceLimit)
    return {};
  return {Code::kUnsupported,
          "all " + std::to_string(kDeviceLimit) + " indices of the torch device are taken"};
}

}  // namespace

TorchDevice::TorchDevice(runtime::Device& device, runtime::DeviceQueue& queue,
                         c10::Device torch_device, Kind kind, bp_buffer* memory)
    : device_(device),
      queue_(queue),
      torch_device_(torch_device),
      kind_(kind),
      memory_(memory),
      shares_host_memory_(kind != Kind::kAdopted && device.binds_host_memory() &&
                          !device.has_streams()),
      pool_(device, queue, shares_host_memory_) {
  device_.begin_use();  // for ever: so do its tensors
}

runtime::DeviceQueue& TorchDevice::queue() const {
  if (!is_adopted()) [[likely]]
    return queue_;
  return *unwrap(device_.queue_over(current_stream_handle(torch_device_)));
}

Result<c10::DeviceIndex> add_device(runtime::Device& device) {
  check_process();
  watch_forks();
  Table& all = table();
  BP_ASSIGN_OR_RETURN(runtime::DeviceQueue* const queue, device.queue());
  const std::lock_guard lock(all.mutex);
  if (const TorchDevice* known = find_device(device)) return known->index();
  const int index = all.count.load(std::memory_order_relaxed);
  BP_RETURN_IF_ERROR(check_room(all));
  all.devices[static_cast<std::size_t>(index)] =
      std::make_unique<TorchDevice>(device, *queue,
                                    c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(index)),
                                    TorchDevice::Kind::kOwn)
          .release();
  all.count.store(index + 1, std::memory_order_release);
  return static_cast<c10::DeviceIndex>(index);
}

Result<TorchDevice*> hidden_device(runtime::Device& device) {
  Table& all = table();
  BP_ASSIGN_OR_RETURN(runtime::DeviceQueue* const queue, device.queue());
  const std::lock_guard lock(all.mutex);
  const int count = all.hidden_count.load(std::memory_order_relaxed);
  for (int i = 1; i <= count; ++i)
    if (TorchDevice* known = all.devices[static_cast<std::size_t>(kDeviceLimit - i)];
        &known->device() == &device)
      return known;
  BP_RETURN_IF_ERROR(check_room(all));
  const int index = kDeviceLimit - 1 - count;
  TorchDevice* made =
      std::make_unique<TorchDevice>(device, *queue,
                                    c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(index)),
                                    TorchDevice::Kind::kHidden)
          .release();
  all.devices[static_cast<std::size_t>(index)] = made;
  all.hidden_count.store(count + 1, std::memory_order_release);
  return made;
}

Result<TorchDevice*> adopted_device(runtime::Device& device) {
  const std::string name(device.torch_device());
  if (name.empty())
    return Status(Code::kUnsupported, device.label() + " takes no tensors of PyTorch's devices");
  const std::optional<c10::Device> parsed = parse_device(name);
  if (!parsed || !parsed->has_index() || parsed->type() == kDeviceType || parsed->is_cpu())
    return Status(Code::kInternal, device.label() + " says that it is PyTorch's '" + name +
                                       "', expected one like 'cuda:0'");
  const c10::Device torch_device = *parsed;
  if (!c10::impl::hasDeviceGuardImpl(torch_device.type()) ||
      c10::GetAllocator(torch_device.type()) == nullptr)
    return Status(Code::kUnsupported,
                  "PyTorch has no device '" + name + "', which " + device.label() + " is");
  watch_forks();
  Table& all = table();
  BP_ASSIGN_OR_RETURN(runtime::DeviceQueue* const queue, device.queue());
  BP_ASSIGN_OR_RETURN(bp_buffer* const memory, device.imported_memory());
  const std::lock_guard lock(all.mutex);
  const int count = all.adopted_count.load(std::memory_order_relaxed);
  for (int i = 0; i < count; ++i) {
    TorchDevice* const known = all.adopted[static_cast<std::size_t>(i)];
    if (&known->device() == &device) return known;
    if (known->torch_device() == torch_device)
      return Status(Code::kWrongDevice,
                    name + " is " + known->device().label() + ", which came first");
  }
  if (count == kDeviceLimit)
    return Status(Code::kUnsupported, "more than " + std::to_string(count) + " devices");
  TorchDevice* made = std::make_unique<TorchDevice>(device, *queue, torch_device,
                                                    TorchDevice::Kind::kAdopted, memory)
                          .release();
  all.adopted[static_cast<std::size_t>(count)] = made;
  all.adopted_count.store(count + 1, std::memory_order_release);
  return made;
}

bool in_bad_fork() noexcept { return g_in_bad_fork.load(std::memory_order_relaxed); }

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
  check_process();
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

TorchDevice* find_owner(c10::Device device) noexcept {
  const Table& all = table();
  if (device.type() != kDeviceType) {
    const int count = all.adopted_count.load(std::memory_order_acquire);
    for (int i = 0; i < count; ++i)
      if (TorchDevice* const one = all.adopted[static_cast<std::size_t>(i)];
          one->torch_device() == device)
        return one;
    return nullptr;
  }
  const c10::DeviceIndex index = device.index();
  const int hidden = all.hidden_count.load(std::memory_order_acquire);
  if (index >= kDeviceLimit - hidden && index < kDeviceLimit)
    return all.devices[static_cast<std::size_t>(index)];
  return find_device(index);
}

TorchDevice& owner_at(c10::Device device) {
  check_process();
  if (TorchDevice* const found = find_owner(device)) return *found;
  TORCH_CHECK(device.type() == kDeviceType,
              "Expected all tensors to be on the same device, but found at least two devices, ",
              device, " and one of a plugin");
  return device_at(device.index());
}

c10::DeviceIndex current_device() noexcept { return t_current; }

c10::DeviceIndex exchange_device(c10::DeviceIndex index) noexcept {
  const c10::DeviceIndex before = t_current;
  if (index >= 0) t_current = index;
  return before;
}

void check_process() {
  TORCH_CHECK(!in_bad_fork(),
              "Cannot re-initialize the backplane device in forked subprocess. To use it with "
              "multiprocessing, you must use the 'spawn' start method");
}

void check(const Status& status) {
  if (status.ok()) [[likely]]
    return;
  bridge::raise_error("BP-0113", status);
}

}  // namespace backplane::device
