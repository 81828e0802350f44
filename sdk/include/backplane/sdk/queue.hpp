// In-order queues with a worker thread each, and their events: for devices whose driver has no
// queues, or none that waits for events. Failures follow the rule at bp_order.
#pragma once

#include <backplane/sdk/device.hpp>

#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace backplane::sdk {

// One signal of an event: pending until finished, then done for good. Shared by the event, the work
// that signals it and the work that waits for it.
class Completion {
 public:
  void finish(Status status) {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      status_ = std::move(status);
    }
    changed_.notify_all();
  }
  // out: the failure, when there is one.
  bool done(Status& out) const {
    const std::lock_guard lock(mutex_);
    if (done_) out = status_;
    return done_;
  }
  // False when the time is over first.
  bool wait(std::uint64_t timeout_ns, Status& out) const {
    std::unique_lock lock(mutex_);
    constexpr std::uint64_t kForEver = 86'400'000'000'000;  // a day: longer overflows the clock
    if (timeout_ns >= kForEver) {
      changed_.wait(lock, [&] { return done_; });
    } else if (!changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                  [&] { return done_; })) {
      return false;
    }
    out = status_;
    return true;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  Status status_;
};

class QueueEvent final : public Event {
 public:
  Status query(bool& out_done) override {
    Status status;
    const auto completion = latest();
    out_done = completion == nullptr || completion->done(status);
    return status;
  }
  Status wait(std::uint64_t timeout_ns) override {
    Status status;
    const auto completion = latest();
    if (completion && !completion->wait(timeout_ns, status))
      return {BP_TIMEOUT, "the event is still pending"};
    return status;
  }
  std::shared_ptr<Completion> latest() const {  // null: never signalled
    const std::lock_guard lock(mutex_);
    return latest_;
  }
  std::shared_ptr<Completion> arm() {  // pending again
    const std::lock_guard lock(mutex_);
    latest_ = std::make_shared<Completion>();
    return latest_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Completion> latest_;
};

// Work in order, on a thread that the first submission starts. Outlives its stream until the queue
// is empty.
class Worker {
 public:
  using Work = std::function<Status()>;
  Worker() = default;
  ~Worker() {
    if (thread_.joinable() && process_ != getpid()) {
      thread_.detach();  // of the parent process
      return;            // its state is abandoned
    }
    close();
    if (thread_.joinable()) thread_.join();
    delete state_;
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Queues; the result finishes when the work has run.
  std::shared_ptr<Completion> submit(const Order& order, Work work) {
    Item item;
    for (std::size_t i = 0; i < order.wait_count(); ++i)
      if (auto latest = static_cast<QueueEvent*>(order.wait(i))->latest())
        item.waits.push_back(std::move(latest));
    item.signalled = order.signal() != nullptr;
    item.completion = item.signalled ? static_cast<QueueEvent*>(order.signal())->arm()
                                     : std::make_shared<Completion>();
    item.work = std::move(work);
    auto completion = item.completion;
    {
      const std::lock_guard lock(state_->mutex);
      state_->queue.push_back(std::move(item));
      state_->idle = false;
      if (!thread_.joinable()) {
        process_ = getpid();
        thread_ = std::thread([state = state_] { run(*state); });
      }
    }
    state_->changed.notify_one();
    return completion;
  }
  // No more submissions; the queue still runs.
  void close() {
    {
      const std::lock_guard lock(state_->mutex);
      state_->closed = true;
    }
    state_->changed.notify_one();
  }
  bool idle_and_closed() const {
    const std::lock_guard lock(state_->mutex);
    return state_->closed && state_->idle;
  }

 private:
  struct Item {
    std::vector<std::shared_ptr<Completion>> waits;
    std::shared_ptr<Completion> completion;
    Work work;
    bool signalled = false;
  };
  // Apart from the worker: a forked child leaves it behind, threads and locks are not its own.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Item> queue;
    Status unreported;  // of work without a signal, for the next one
    bool closed = false, idle = true;
  };

  static void run(State& state) {
    for (;;) {
      Item item;
      {
        std::unique_lock lock(state.mutex);
        state.idle = state.queue.empty();
        state.changed.wait(lock, [&] { return state.closed || !state.queue.empty(); });
        if (state.queue.empty()) return;
        item = std::move(state.queue.front());
        state.queue.pop_front();
      }
      Status status;
      for (const auto& wait : item.waits) {
        Status failure;
        wait->wait(UINT64_MAX, failure);
        if (status.ok() && !failure.ok()) status = std::move(failure);
      }
      if (status.ok()) status = Status::adopt(shield(item.work));
      item.work = nullptr;  // what it holds goes before the completion is seen
      if (item.signalled) {
        if (status.ok()) status = std::exchange(state.unreported, {});
      } else if (!status.ok()) {
        state.unreported = status;
      }
      item.completion->finish(std::move(status));
    }
  }

  State* state_ = new State;
  std::thread thread_;
  pid_t process_ = 0;
};

class QueueStream final : public Stream {
 public:
  explicit QueueStream(std::shared_ptr<Worker> worker) : worker_(std::move(worker)) {}
  ~QueueStream() override { worker_->close(); }
  Worker& worker() { return *worker_; }

 private:
  std::shared_ptr<Worker> worker_;
};

// The queues of one device: those of its streams, and the device's own.
class Queues {
 public:
  std::unique_ptr<Stream> create_stream() {
    const std::lock_guard lock(mutex_);
    std::erase_if(workers_, [](const auto& worker) { return worker->idle_and_closed(); });
    workers_.push_back(std::make_shared<Worker>());
    return std::make_unique<QueueStream>(workers_.back());
  }
  std::unique_ptr<Event> create_event() { return std::make_unique<QueueEvent>(); }

  // Queues on the order's stream or the device's own. Without a signal, and `blocking` or on the
  // device's own order, it returns when the work is done.
  Status submit(const Order& order, bool blocking, Worker::Work work) {
    std::shared_ptr<Completion> completion;
    if (order.stream() != nullptr) {
      completion =
          static_cast<QueueStream*>(order.stream())->worker().submit(order, std::move(work));
    } else {
      const std::lock_guard lock(mutex_);
      if (own_order_ == nullptr) own_order_ = std::make_shared<Worker>();
      completion = own_order_->submit(order, std::move(work));
      blocking = true;
    }
    Status status;
    if (blocking && order.signal() == nullptr) completion->wait(UINT64_MAX, status);
    return status;
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Worker>> workers_;  // kept until their queues are empty
  std::shared_ptr<Worker> own_order_;
};

}  // namespace backplane::sdk
