#include "core/torch/bridge/live_operator.h"

#include <atomic>
#include <memory>
#include <utility>

namespace backplane::bridge {

namespace {

std::atomic<std::uint64_t> g_removals{0};

class CountRemovals final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& /*op*/) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& /*op*/) override {
    g_removals.fetch_add(1, std::memory_order_release);
  }
};

}  // namespace

std::uint64_t operator_removals() {
  // Listens until the process ends.
  [[maybe_unused]] static const auto& listening = *new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<CountRemovals>()));
  return g_removals.load(std::memory_order_acquire);
}

LiveOperator::LiveOperator(c10::OperatorHandle handle)
    : handle_(std::move(handle)), name_(handle_.operator_name()), removals_(operator_removals()) {}

c10::OperatorHandle LiveOperator::get() const {
  if (g_removals.load(std::memory_order_acquire) == removals_) [[likely]]
    return handle_;
  return c10::Dispatcher::singleton().findSchemaOrThrow(name_.name.c_str(),
                                                        name_.overload_name.c_str());
}

}  // namespace backplane::bridge
