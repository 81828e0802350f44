// The table behind torch.device("backplane:N"): one index per (plugin, device), given out in the
// order of the first request and never taken back. And devices of PyTorch's own that plugins adopt:
// torch.device("cuda:0") where a plugin works on its memory.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "core/base/status.h"
#include "core/runtime/plugin/device.h"
#include "core/torch/device/pool.h"

namespace backplane::device {

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
inline constexpr int kDeviceLimit = 64;

// A plugin's device as torch sees it. Lives until the process ends.
class TorchDevice {
 public:
  enum class Kind : std::uint8_t {
    kOwn,
    kHidden,  // its tensors are never seen outside: see hidden_device()
    kAdopted  // its tensors are PyTorch's own: see adopted_device()
  };
  // `memory`: of an adopted device, runtime::Device::imported_memory; else null.
  TorchDevice(runtime::Device& device, runtime::DeviceQueue& queue, c10::Device torch_device,
              Kind kind, bp_buffer* memory = nullptr);

  runtime::Device& device() const { return device_; }
  // Of an adopted device, that of the calling thread's current stream. A c10::Error where the
  // plugin does not take it.
  runtime::DeviceQueue& queue() const;
  c10::Device torch_device() const { return torch_device_; }
  c10::DeviceIndex index() const { return torch_device_.index(); }
  bool is_hidden() const { return kind_ == Kind::kHidden; }
  bool is_adopted() const { return kind_ == Kind::kAdopted; }
  // Else random numbers come from the CPU's.
  bool has_generator() const { return kind_ == Kind::kOwn; }
  bp_buffer* imported_memory() const { return memory_; }
  Pool& pool() { return pool_; }  // empty for ever on an adopted device
  // Kernels work on host memory in place, and every call is over when it returns: what is on the
  // device is on the host as well.
  bool shares_host_memory() const { return shares_host_memory_; }

 private:
  runtime::Device& device_;
  runtime::DeviceQueue& queue_;
  c10::Device torch_device_;
  Kind kind_;
  bp_buffer* memory_;
  bool shares_host_memory_;
  Pool pool_;
};

// The index of a plugin's device, new at its first request.
Result<c10::DeviceIndex> add_device(runtime::Device& device);
// The same plugin's device under an index of its own that is not counted: for values of CPU
// programs that stay in its memory. Such tensors are bound and copied by functions of this folder,
// and reach no dispatcher: the torch device may not be registered, or be another package's.
Result<TorchDevice*> hidden_device(runtime::Device& device);
// PyTorch's own device that the plugin's device is, as that says (runtime::Device::torch_device).
// Its tensors are bound where they lie, its allocator gives memory, its current stream the order.
// UNSUPPORTED where PyTorch has no such device.
Result<TorchDevice*> adopted_device(runtime::Device& device);
int device_count() noexcept;  // of own ones
// Whether this is a child of fork() and its parent had devices: their threads are not here.
bool in_bad_fork() noexcept;
// Null where no device has that index. No hidden ones.
TorchDevice* find_device(c10::DeviceIndex index) noexcept;
TorchDevice* find_device(const runtime::Device& device) noexcept;
// As find_device, but an unknown index is a c10::Error that says which there are, and so is any in
// a bad fork. -1 is the current one.
TorchDevice& device_at(c10::DeviceIndex index);
// As find_device, of the device of any tensor: hidden and adopted ones too.
TorchDevice* find_owner(c10::Device device) noexcept;
// As device_at, likewise.
TorchDevice& owner_at(c10::Device device);

// The calling thread's.
c10::DeviceIndex current_device() noexcept;
c10::DeviceIndex exchange_device(c10::DeviceIndex index) noexcept;

// A c10::Error in a bad fork.
void check_process();

// Raises `status`: BackplaneError BP-0113, or its kind for memory (bridge/errors.h).
void check(const Status& status);
template <class T>
T unwrap(Result<T> result) {
  if (!result.ok()) check(result.status());
  return std::move(*result);
}

}  // namespace backplane::device
