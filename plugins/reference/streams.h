// In-order queues with a worker thread each, and events.
#pragma once

#include <backplane/sdk/device.hpp>

#include <unistd.h>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace backplane::reference {

// One signal of an event: pending until finished, then done for good. Shared by the event, the
// work that signals it and the work that waits for it.
class Completion {
 public:
  void finish(sdk::Status status);
  bool done(sdk::Status& out) const;  // out: the failure, when there is one
  // False when the time is over first.
  bool wait(std::uint64_t timeout_ns, sdk::Status& out) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  sdk::Status status_;
};

class ReferenceEvent final : public sdk::Event {
 public:
  sdk::Status query(bool& out_done) override;
  sdk::Status wait(std::uint64_t timeout_ns) override;
  std::shared_ptr<Completion> latest() const;  // null: never signalled
  std::shared_ptr<Completion> arm();           // pending again

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Completion> latest_;
};

// Work in order, on a thread that the first submission starts. Outlives its stream until the
// queue is empty.
class Worker {
 public:
  using Work = std::function<sdk::Status()>;
  Worker() = default;
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Queues; the result is what signals when it has run. A failure of a wait is carried on and
  // the work skipped. `signal` may be null: then a failure goes to the stream's next signal.
  std::shared_ptr<Completion> submit(const sdk::Order& order, Work work);
  void close();  // no more submissions; the queue still runs
  bool idle_and_closed() const;

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
    sdk::Status unreported;
    bool closed = false, idle = true;
  };
  static void run(State& state);

  State* state_ = new State;
  std::thread thread_;
  pid_t process_ = 0;
};

class ReferenceStream final : public sdk::Stream {
 public:
  explicit ReferenceStream(std::shared_ptr<Worker> worker) : worker_(std::move(worker)) {}
  ~ReferenceStream() override { worker_->close(); }
  Worker& worker() { return *worker_; }

 private:
  std::shared_ptr<Worker> worker_;
};

}  // namespace backplane::reference
