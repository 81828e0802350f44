// The error that a thread of the program's language holds, such as Python's: plugins reach that
// language through the process, and one that leaves an error in it makes the program fail
// elsewhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace backplane::runtime {

struct LanguageHooks {
  bool (*has_error)();          // of this thread: cheap, with no lock
  std::string (*take_error)();  // its text; gone afterwards
  bool (*is_ending)();          // it ends threads that come to it
};
namespace detail {
extern std::atomic<const LanguageHooks*> language_hooks;
extern constinit thread_local std::uint32_t own_errors;
}  // namespace detail

// `hooks` live as long as the process. Null: none.
void set_language_hooks(const LanguageHooks* hooks);
// Whether it ends threads, by unwinding them.
bool language_ends();
// An error that the host itself has left in this thread, to be raised later.
inline void note_own_error() { ++detail::own_errors; }

// Around one call into a plugin: an error that it leaves is taken away, and told.
class LanguageGuard {
 public:
  LanguageGuard(std::string_view who, std::string_view entry)
      : hooks_(detail::language_hooks.load(std::memory_order_relaxed)), who_(who), entry_(entry) {
    if (hooks_ == nullptr) return;
    own_ = detail::own_errors;
    had_ = hooks_->has_error();
  }
  ~LanguageGuard() {
    if (hooks_ != nullptr && !had_ && own_ == detail::own_errors && hooks_->has_error())
        [[unlikely]]
      take();
  }
  LanguageGuard(const LanguageGuard&) = delete;
  LanguageGuard& operator=(const LanguageGuard&) = delete;

 private:
  void take() const;
  const LanguageHooks* hooks_;
  std::string_view who_, entry_;
  std::uint32_t own_ = 0;
  bool had_ = false;
};

}  // namespace backplane::runtime
