#include "streams.h"

namespace backplane::reference {

void Completion::finish(sdk::Status status) {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    status_ = std::move(status);
  }
  changed_.notify_all();
}
bool Completion::done(sdk::Status& out) const {
  const std::lock_guard lock(mutex_);
  if (done_) out = status_;
  return done_;
}
bool Completion::wait(std::uint64_t timeout_ns, sdk::Status& out) const {
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

sdk::Status ReferenceEvent::query(bool& out_done) {
  sdk::Status status;
  const auto completion = latest();
  out_done = completion == nullptr || completion->done(status);
  return status;
}
sdk::Status ReferenceEvent::wait(std::uint64_t timeout_ns) {
  sdk::Status status;
  const auto completion = latest();
  if (completion && !completion->wait(timeout_ns, status))
    return {BP_TIMEOUT, "the event is still pending"};
  return status;
}
std::shared_ptr<Completion> ReferenceEvent::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}
std::shared_ptr<Completion> ReferenceEvent::arm() {
  const std::lock_guard lock(mutex_);
  latest_ = std::make_shared<Completion>();
  return latest_;
}

Worker::~Worker() {
  if (thread_.joinable() && process_ != getpid()) {
    thread_.detach();  // of the parent process
    return;            // its state is abandoned
  }
  close();
  if (thread_.joinable()) thread_.join();
  delete state_;
}

std::shared_ptr<Completion> Worker::submit(const sdk::Order& order, Work work) {
  Item item;
  for (std::size_t i = 0; i < order.wait_count(); ++i)
    if (auto latest = static_cast<ReferenceEvent*>(order.wait(i))->latest())
      item.waits.push_back(std::move(latest));
  item.signalled = order.signal() != nullptr;
  item.completion = item.signalled ? static_cast<ReferenceEvent*>(order.signal())->arm()
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

void Worker::close() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
  }
  state_->changed.notify_one();
}
bool Worker::idle_and_closed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->closed && state_->idle;
}

void Worker::run(State& state) {
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
    sdk::Status status;
    for (const auto& wait : item.waits) {
      sdk::Status failure;
      wait->wait(UINT64_MAX, failure);
      if (status.ok() && !failure.ok()) status = std::move(failure);
    }
    if (status.ok()) status = sdk::Status::adopt(sdk::shield(item.work));
    item.work = nullptr;  // what it holds goes before the completion is seen
    if (item.signalled) {
      if (status.ok()) status = std::exchange(state.unreported, {});
    } else if (!status.ok()) {
      state.unreported = status;
    }
    item.completion->finish(std::move(status));
  }
}

}  // namespace backplane::reference
