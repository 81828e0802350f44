#include "core/base/fork.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <mutex>
#include <shared_mutex>
#include <thread>

namespace backplane {
namespace {

// Whether the child of a fork says so within a few seconds.
template <class Check>
bool child_says(Check&& check) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);
    ::_exit(check() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool was_told = false;

TEST(Fork, WaitsForItsLocksAndTellsTheChild) {
  static std::mutex mutex;
  hold_over_fork(
      mutex, ForkRank::kOuter, [](void* told) { *static_cast<bool*>(told) = true; }, &was_told);
  auto& other = fork_mutex<std::mutex>();
  int value = 0;
  std::promise<void> begun;
  std::thread writer([&] {
    const std::lock_guard outer(mutex);
    value = 1;
    begun.set_value();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const std::lock_guard inner(other);
    value = 2;
  });
  begun.get_future().wait();
  EXPECT_TRUE(child_says([&] {
    const std::lock_guard outer(mutex);
    const std::lock_guard inner(other);
    return value == 2 && was_told && fork_count() == 1;
  }));
  writer.join();
  EXPECT_FALSE(was_told);
  EXPECT_EQ(fork_count(), 0u);
}

TEST(Fork, ALockThatKnowsItsOwnerIsFreeInTheChild) {
  auto& mutex = fork_mutex<std::shared_mutex>();
  EXPECT_TRUE(child_says([&] {
    { const std::shared_lock reader(mutex); }
    const std::unique_lock writer(mutex);
    return true;
  }));
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
}

TEST(Fork, ALongLockThatAThreadOfTheParentHoldsIsAnErrorInTheChild) {
  LongMutex mutex;
  std::promise<void> begun, end;
  std::thread holder([&] {
    const auto lock = mutex.hold("It");
    begun.set_value();
    end.get_future().wait();
  });
  begun.get_future().wait();
  EXPECT_TRUE(child_says([&] {
    const auto lock = mutex.hold("Compiling 'f'");
    return lock.status().message().starts_with("Compiling 'f' was under way in another thread");
  }));
  end.set_value();
  holder.join();
  EXPECT_TRUE(mutex.hold("It").ok());
  EXPECT_TRUE(child_says([&] { return mutex.hold("It").ok(); }));
}

}  // namespace
}  // namespace backplane
