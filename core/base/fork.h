// Locks over fork(): only the thread that forks goes on in the child, and a lock that another one
// held is never given back there.
//
// Every lock of core is one of three, and scripts/check_locks.py knows which: held over fork (what
// it guards is whole in the child), long (the child gets an error), or not needed by children, with
// the reason.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

#include "core/base/status.h"

namespace backplane {

// The order in which fork() takes locks. One that is held while another is taken comes before it.
enum class ForkRank : std::uint8_t { kOuter, kLeaf, kLast };

namespace detail {
struct ForkEntry {
  void* mutex;
  void (*lock)(void*);
  void (*unlock)(void*);
  void (*renew)(void*);  // in the child: some locks know their owner by its number, which differs
  ForkRank rank;
  void (*in_child)(void* user);
  void* user;
  ForkEntry* next = nullptr;
};
void add_fork_entry(const ForkEntry& entry);
}  // namespace detail

// From now on fork() waits for `mutex`, which lives as long as the process and is never held over
// foreign code. `in_child` runs in the child with all such locks held: for what threads of the
// parent had begun. It must not wait for a static object that one of them was making.
template <class Mutex>
void hold_over_fork(Mutex& mutex, ForkRank rank, void (*in_child)(void* user) = nullptr,
                    void* user = nullptr) {
  detail::add_fork_entry({&mutex, [](void* one) { static_cast<Mutex*>(one)->lock(); },
                          [](void* one) { static_cast<Mutex*>(one)->unlock(); },
                          [](void* one) { std::construct_at(static_cast<Mutex*>(one)); }, rank,
                          in_child, user});
}

// A new one, never destroyed: threads outlive static objects.
template <class Mutex = std::mutex>
Mutex& fork_mutex(ForkRank rank = ForkRank::kLeaf) {
  auto* const made = new Mutex;
  hold_over_fork(*made, rank);
  return *made;
}

// How often this process and its parents forked on the way here.
std::uint32_t fork_count();

// A lock that is held long, over foreign code, so that fork() must not wait for it.
class LongMutex {
 public:
  class Lock {
   public:
    explicit Lock(LongMutex* held) : held_(held) {}
    ~Lock() {
      if (held_ != nullptr) held_->unlock();
    }
    Lock(Lock&& other) noexcept : held_(other.held_) { other.held_ = nullptr; }
    Lock& operator=(Lock&&) = delete;

   private:
    LongMutex* held_;
  };
  // In a child of fork() an error where a thread of the parent held it. `what` begins its message.
  Result<Lock> hold(std::string_view what);

 private:
  void unlock();
  std::mutex mutex_;
  std::atomic<std::uint64_t> holder_{0};  // its fork_count() + 1; 0: free
};

}  // namespace backplane
