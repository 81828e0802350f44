#include "core/base/fork.h"

#include <pthread.h>

#include <string>

namespace backplane {

namespace {

// Grows at its front, without a lock: whoever registers never waits for a thread that forks.
std::atomic<detail::ForkEntry*> entries{nullptr};
std::atomic<std::uint32_t> forks{0};
detail::ForkEntry* held = nullptr;  // of the thread that forks; guarded by one_fork
pthread_mutex_t one_fork = PTHREAD_MUTEX_INITIALIZER;

constexpr ForkRank kRanks[] = {ForkRank::kOuter, ForkRank::kLeaf, ForkRank::kLast};

void take_all() {
  ::pthread_mutex_lock(&one_fork);
  held = entries.load(std::memory_order_acquire);
  for (const ForkRank rank : kRanks)
    for (const detail::ForkEntry* one = held; one != nullptr; one = one->next)
      if (one->rank == rank) one->lock(one->mutex);
}

void give_all() {
  for (const detail::ForkEntry* one = held; one != nullptr; one = one->next)
    one->unlock(one->mutex);
  held = nullptr;
  ::pthread_mutex_unlock(&one_fork);
}

void give_all_in_child() {
  forks.fetch_add(1, std::memory_order_relaxed);
  for (const detail::ForkEntry* one = held; one != nullptr; one = one->next)
    if (one->in_child != nullptr) one->in_child(one->user);
  for (const detail::ForkEntry* one = held; one != nullptr; one = one->next) one->renew(one->mutex);
  held = nullptr;
  ::pthread_mutex_unlock(&one_fork);
}

[[maybe_unused]] const int registered = ::pthread_atfork(take_all, give_all, give_all_in_child);

}  // namespace

void detail::add_fork_entry(const ForkEntry& entry) {
  auto* const made = new ForkEntry(entry);
  made->next = entries.load(std::memory_order_relaxed);
  while (!entries.compare_exchange_weak(made->next, made, std::memory_order_release,
                                        std::memory_order_relaxed)) {
  }
}

std::uint32_t fork_count() { return forks.load(std::memory_order_relaxed); }

Result<LongMutex::Lock> LongMutex::hold(std::string_view what) {
  const std::uint64_t own = std::uint64_t{fork_count()} + 1;
  const std::uint64_t holder = holder_.load(std::memory_order_acquire);
  if (holder != 0 && holder != own)
    return Status(Code::kUnsupported,
                  std::string(what) +
                      " was under way in another thread when this process was forked, and stays "
                      "unfinished here; fork before or after it, or start the child with spawn.");
  mutex_.lock();
  holder_.store(own, std::memory_order_release);
  return Lock(this);
}

void LongMutex::unlock() {
  holder_.store(0, std::memory_order_release);
  mutex_.unlock();
}

}  // namespace backplane
