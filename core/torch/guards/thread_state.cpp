#include "core/torch/guards/thread_state.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>

#include <sstream>
#include <vector>

#include "core/torch/bridge/attention.h"
#include "core/torch/bridge/new_memory.h"

namespace backplane::guards {

namespace {

struct StateRow {
  const char* name;
  std::string value;
};

constexpr const char* kNone = "none";

std::string on_off(bool on) { return on ? "on" : "off"; }

std::string text_of(const std::vector<const void*>& classes) {
  std::ostringstream out;  // by address: a class may be gone
  for (const void* one : classes) out << one << ' ';
  return classes.empty() ? kNone : out.str();
}

std::vector<const void*> find_function_modes() {
  std::vector<const void*> classes;
  for (std::int64_t i = 0; i < at::impl::PythonTorchFunctionTLS::stack_len(); ++i)
    classes.push_back(
        Py_TYPE(at::impl::PythonTorchFunctionTLS::get_stack_at(i)->ptr(getPyInterpreter())));
  return classes;
}

std::vector<StateRow> rows(const ThreadState& state) {
  return {
      {"grad mode", on_off(state.grad)},
      {"inference mode", on_off(state.inference)},
      {"__torch_function__", on_off(state.torch_function)},
      {"deterministic algorithms", on_off(state.deterministic)},
      {"deterministic warnings", on_off(state.deterministic_warn_only)},
      {"filling of new memory", on_off(state.fills_new_memory)},
      {"autocast on the CPU", on_off(state.autocast_cpu)},
      {"autocast dtype of the CPU", c10::toString(state.autocast_cpu_dtype)},
      {"autocast on the accelerator", on_off(state.autocast_accelerator)},
      {"autocast dtype of the accelerator", c10::toString(state.autocast_accelerator_dtype)},
      {"autocast on the torch device", on_off(state.autocast_device)},
      {"autocast dtype of the torch device", c10::toString(state.autocast_device_dtype)},
      {"the cache of autocast", on_off(state.autocast_cache)},
      {"a mode or functorch transform", on_off(state.modes)},
      {"the stack of TorchFunctionModes", text_of(state.function_modes)},
      {"the number of TorchDispatchModes",
       state.dispatch_modes == 0 ? kNone : std::to_string(state.dispatch_modes)},
      {"default dtype", c10::toString(state.default_dtype)},
      {"the kinds of attention that are allowed, as bits",
       state.attention == bridge::kEveryAttention ? kNone : std::to_string(state.attention)},
  };
}

}  // namespace

ThreadState ThreadState::current() {
  ThreadState state;
  at::Context& context = at::globalContext();
  state.grad = c10::GradMode::is_enabled();
  state.inference = c10::InferenceMode::is_enabled();
  state.torch_function = at::impl::PythonTorchFunctionTLS::get_disabled_state() ==
                         at::impl::TorchFunctionDisabledState::ENABLED;
  state.deterministic = context.deterministicAlgorithms();
  state.deterministic_warn_only = context.deterministicAlgorithmsWarnOnly();
  state.fills_new_memory = bridge::fills_new_memory();
  state.autocast_cpu = at::autocast::is_autocast_enabled(at::kCPU);
  state.autocast_accelerator = at::autocast::is_autocast_enabled(at::kCUDA);
  state.autocast_cpu_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  state.autocast_accelerator_dtype = at::autocast::get_autocast_dtype(at::kCUDA);
  state.autocast_device = at::autocast::is_autocast_enabled(at::kPrivateUse1);
  state.autocast_device_dtype = at::autocast::get_autocast_dtype(at::kPrivateUse1);
  state.autocast_cache = at::autocast::is_autocast_cache_enabled();
  state.function_modes = find_function_modes();
  state.dispatch_modes = c10::impl::TorchDispatchModeTLS::stack_len();
  state.modes = !state.function_modes.empty() || c10::impl::TorchDispatchModeTLS::any_modes_set() ||
                c10::impl::tls_local_dispatch_key_set().included_.has(
                    c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
  state.default_dtype = c10::get_default_dtype_as_scalartype();
  state.attention = bridge::allowed_attention();
  return state;
}

std::string ThreadState::explain(const ThreadState& now) const {
  const std::vector<StateRow> expected = rows(*this), is = rows(now);
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (expected[i].value != is[i].value)
      return std::string(expected[i].name) + " is " + is[i].value + ", expected " +
             expected[i].value;
  return "nothing differs";
}

std::string ThreadState::text() const {
  std::string out;
  for (const StateRow& row : rows(*this))
    if (row.value != kNone)
      out += (out.empty() ? "" : ", ") + std::string(row.name) + ": " + row.value;
  return out;
}

}  // namespace backplane::guards
