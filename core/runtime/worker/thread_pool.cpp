#include "core/runtime/worker/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/runtime/host/host_services.h"

namespace backplane::runtime {

namespace {

constexpr std::uint32_t kThreadLimit = 1024;
std::atomic<std::uint32_t> thread_count{1};

// Chunks of one loop at a time; whoever finds it busy runs his loop himself.
class Pool {
 public:
  void run(std::size_t count, std::size_t grain, void* user,
           void (*body)(void* user, std::size_t begin, std::size_t end)) {
    const std::size_t wanted = std::min<std::size_t>(thread_count, (count + grain - 1) / grain);
    const std::unique_lock alone(busy_, std::try_to_lock);
    if (wanted < 2 || !alone.owns_lock()) {
      body(user, 0, count);
      return;
    }
    std::unique_lock lock(mutex_);
    while (threads_ + 1 < wanted) {
      std::thread([this] { work(); }).detach();  // as long as the process
      ++threads_;
    }
    const std::size_t share = (count + wanted - 1) / wanted;
    loop_ = {user, body, count, share, 0, (count + share - 1) / share};
    begun_.notify_all();
    take_chunks(lock);
    ended_.wait(lock, [&] { return loop_.open == 0; });
  }

 private:
  struct Loop {
    void* user = nullptr;
    void (*body)(void* user, std::size_t begin, std::size_t end) = nullptr;
    std::size_t count = 0, share = 1, next = 0;
    std::size_t open = 0;  // chunks that are not done
  };
  void take_chunks(std::unique_lock<std::mutex>& lock) {
    while (loop_.next < loop_.count) {
      const std::size_t begin = loop_.next, end = std::min(begin + loop_.share, loop_.count);
      loop_.next = end;
      const Loop loop = loop_;
      lock.unlock();
      loop.body(loop.user, begin, end);
      lock.lock();
      if (--loop_.open == 0) ended_.notify_all();
    }
  }
  [[noreturn]] void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      begun_.wait(lock, [&] { return loop_.next < loop_.count; });
      take_chunks(lock);
    }
  }

  std::mutex busy_;   // of the loop that runs
  std::mutex mutex_;  // guards what follows; not held over a body
  std::condition_variable begun_, ended_;
  std::size_t threads_ = 0;
  Loop loop_;
};

}  // namespace

void install_thread_pool() {
  static auto* const pool = new Pool;
  set_thread_hooks({[] { return thread_count.load(std::memory_order_relaxed); },
                    [](std::size_t count, std::size_t grain, void* user,
                       void (*body)(void* user, std::size_t begin, std::size_t end)) {
                      pool->run(count, grain, user, body);
                    }});
}

void set_pool_threads(std::uint32_t count) {
  thread_count.store(std::clamp<std::uint32_t>(count, 1, kThreadLimit), std::memory_order_relaxed);
}

}  // namespace backplane::runtime
