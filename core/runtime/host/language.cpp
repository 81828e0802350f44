#include "core/runtime/host/language.h"

#include "core/runtime/host/process_state.h"

namespace backplane::runtime {

namespace detail {
constinit std::atomic<const LanguageHooks*> language_hooks{nullptr};
constinit thread_local std::uint32_t own_errors = 0;
}  // namespace detail

void set_language_hooks(const LanguageHooks* hooks) { detail::language_hooks = hooks; }

bool language_ends() {
  const LanguageHooks* const hooks = detail::language_hooks.load(std::memory_order_relaxed);
  return hooks != nullptr && hooks->is_ending();
}

void LanguageGuard::take() const {
  warn_once(std::string(who_) + ": " + std::string(entry_) + " left an error of Python set (" +
            hooks_->take_error() +
            "); it was cleared; a plugin that calls Python must clear the errors it makes");
}

}  // namespace backplane::runtime
