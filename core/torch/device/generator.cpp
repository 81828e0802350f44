#include "core/torch/device/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <mutex>
#include <utility>

#include "core/torch/device/devices.h"

namespace backplane::device {

namespace {

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(c10::DeviceIndex index)
      : DeviceGenerator(index, at::make_generator<at::CPUGeneratorImpl>()) {}
  DeviceGenerator(c10::DeviceIndex index, at::Generator host)
      : GeneratorImpl({kDeviceType, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host_(std::move(host)) {}

  const at::Generator& host() const { return host_; }

  void set_current_seed(std::uint64_t seed) override { host_.set_current_seed(seed); }
  // The whole state is the host's: an offset is what copies and pickles ask of a device's.
  void set_offset(std::uint64_t offset) override {
    TORCH_CHECK(offset == 0, "generators of the backplane device have no offset, got ", offset);
  }
  std::uint64_t get_offset() const override { return 0; }
  std::uint64_t current_seed() const override { return host_.current_seed(); }
  std::uint64_t seed() override { return host_.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    host_.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host_.unsafeGetGeneratorImpl()->get_state();
  }
  // The state itself, not its content.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override {
    const auto* other = dynamic_cast<const DeviceGenerator*>(state.get());
    TORCH_CHECK(other != nullptr, "the state of a generator of another device");
    host_ = other->host_;
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::make_intrusive<DeviceGenerator>(device().index(), host_);
  }

 private:
  DeviceGenerator* clone_impl() const override {
    return new DeviceGenerator(device().index(), host_.clone());
  }

  mutable at::Generator host_;
};

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex index) {
  check_process();
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::array<at::Generator, kDeviceLimit>;
  const c10::DeviceIndex wanted = index < 0 ? current_device() : index;
  if (wanted != 0) device_at(wanted);  // the first may get its device later
  const std::lock_guard lock(mutex);
  at::Generator& one = all[static_cast<std::size_t>(wanted)];
  if (!one.defined()) one = make_generator(wanted);
  return one;
}

at::Generator make_generator(c10::DeviceIndex index) {
  return at::make_generator<DeviceGenerator>(index < 0 ? current_device() : index);
}

at::Generator host_generator(const at::Generator& generator) {
  return static_cast<const DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->host();
}

}  // namespace backplane::device
