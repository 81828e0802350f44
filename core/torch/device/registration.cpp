#include "core/torch/device/registration.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <string>

#include "core/torch/device/composites.h"
#include "core/torch/device/devices.h"
#include "core/torch/device/eager.h"
#include "core/torch/device/factories.h"
#include "core/torch/device/fallback.h"
#include "core/torch/device/guard.h"
#include "core/torch/device/layouts.h"
#include "core/torch/device/memory.h"
#include "core/torch/device/nested.h"
#include "core/torch/device/optimizers.h"
#include "core/torch/record/dispatch.h"

namespace backplane::device {

namespace {

std::atomic<bool> g_registered{false};

Status taken(const std::string& what) {
  return Status(
      Code::kUnsupported,
      "torch has room for one further kind of device, and another package has taken it (" + what +
          "); plugins still run CPU tensors with torch.compile");
}

Status check_slot() {
  if (c10::is_privateuse1_backend_registered() && c10::get_privateuse1_backend() != "backplane")
    return taken("its name is '" + c10::get_privateuse1_backend() + "'");
  if (at::isPrivateUse1HooksRegistered()) return taken("it registered hooks");
  if (c10::impl::hasDeviceGuardImpl(kDeviceType)) return taken("it registered a device guard");
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  if (dispatcher.hasBackendFallbackForDispatchKey(c10::DispatchKey::PrivateUse1))
    return taken("it registered a fallback");
  const auto empty = dispatcher.findSchema({"aten::empty", "memory_format"});
  if (empty && empty->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
    return taken("it registered kernels");
  return {};
}

Status do_register() {
  BP_RETURN_IF_ERROR(check_slot());
  BP_RETURN_IF_ERROR(record::register_recorder());
  try {
    // First what can fail: torch takes one fallback per key.
    static auto& fallback = *new torch::Library(torch::Library::IMPL, "_",
                                                c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    fallback.fallback(torch::CppFunction::makeFromBoxedFunction<&run_unknown_on_cpu>());
    register_nested();
    register_missing_layouts();
    register_autocast();
  } catch (const std::exception& error) {
    return taken(error.what());
  }
  register_composites();
  static auto& kernels = *new torch::Library(torch::Library::IMPL, "aten",
                                             c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  register_memory_kernels(kernels);
  register_optimizers(kernels);
  register_eager_kernels(kernels);
  c10::SetAllocator(kDeviceType, allocator(), /*priority=*/255);
  register_guard();
  register_hooks();
  g_registered.store(true, std::memory_order_release);
  return {};
}

}  // namespace

Status register_device() {
  static const Status& status = *new Status(do_register());
  return status;
}

bool is_registered() { return g_registered.load(std::memory_order_acquire); }

}  // namespace backplane::device
