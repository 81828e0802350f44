#include "core/runtime/plugin/device_queue.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "core/runtime/plugin/device.h"

namespace backplane::runtime {

namespace {
constexpr std::size_t kOwedLimit = 16, kLostLimit = 64;
}

void DeviceQueue::note_work(std::string_view graph, std::string_view nodes) {
  if (stream_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  std::array<char, 160>& text = works_[work_count_++ % works_.size()].text;
  const auto shown = [](std::string_view s, std::size_t most) {
    return static_cast<int>(std::min(s.size(), most));
  };
  std::snprintf(text.data(), text.size(), "%.*s%s%.*s", shown(nodes, 100), nodes.data(),
                graph.empty() ? "" : " of ", shown(graph, 50), graph.data());
}

Status DeviceQueue::told(Status failure) const {
  if (failure.ok()) [[likely]]
    return failure;
  const std::lock_guard lock(mutex_);
  if (work_count_ == 0) return failure;
  std::string text = failure.message() + ", in work that was queued before: ";
  const std::uint64_t shown = std::min<std::uint64_t>(work_count_, works_.size());
  if (shown < work_count_) text += std::to_string(work_count_ - shown) + " earlier ones; ";
  for (std::uint64_t n = work_count_ - shown; n < work_count_; ++n)
    text +=
        (n == work_count_ - shown ? "" : "; ") + std::string(works_[n % works_.size()].text.data());
  return {failure.code(), std::move(text)};
}

DeviceQueue::~DeviceQueue() {
  for (const auto* events : {&free_events_, &owed_})
    for (bp_event* event : *events) device_.release_event(event);
  device_.release_stream(stream_);
}

bp_order DeviceQueue::order() const {
  bp_order order{};
  order.stream = stream_;
  return order;
}

Status DeviceQueue::mark(bp_event* event) {
  bp_order after = order();
  after.signal = event;
  const bp_range nothing{};
  return device_.copy_async(nothing, nothing, CopyCause::kOther, after);
}

Status DeviceQueue::signal(bp_event* event) {
  if (event == nullptr) return {};
  BP_ASSIGN_OR_RETURN(bp_event* const own, take_event());
  BP_RETURN_IF_ERROR(mark(own));
  bp_event* oldest = nullptr;
  {
    const std::lock_guard lock(mutex_);
    owed_.push_back(own);
    if (owed_.size() > kOwedLimit) {
      oldest = owed_.front();
      owed_.erase(owed_.begin());
    }
  }
  if (oldest != nullptr) {
    keep_found(told(device_.wait(oldest)));
    give_event(oldest);
  }
  // A device tells a failure to the first event behind it, which is ours.
  return mark(event);
}

Result<bp_event*> DeviceQueue::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_events_.empty()) {
      bp_event* event = free_events_.back();
      free_events_.pop_back();
      return event;
    }
  }
  return device_.create_event();
}

void DeviceQueue::give_event(bp_event* event) {
  if (event == nullptr) return;
  const std::lock_guard lock(mutex_);
  free_events_.push_back(event);
}

void DeviceQueue::note(std::uint64_t number, const Status& status) {
  const std::lock_guard lock(mutex_);
  // Data that were refused, an index say, spoil what needs them: all before is sound.
  const bool is_data = status.code() == Code::kInvalidArgument;
  const std::uint64_t first = is_data ? refusable_ : answered_ + 1;
  if (!status.ok() && first != 0 && number >= first) {
    lost_.push_back({first, number, status});
    if (lost_.size() > kLostLimit) {  // of two failures the later stands for both
      lost_[1].first = lost_[0].first;
      lost_.erase(lost_.begin());
    }
    has_lost_.store(true, std::memory_order_release);
  }
  answered_ = std::max(answered_, number);
  if (refusable_ <= number) refusable_ = 0;
}

void DeviceQueue::note_refusable() {
  if (stream_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (refusable_ == 0) refusable_ = submitted_.load(std::memory_order_relaxed) + 1;
}

Status DeviceQueue::failure_of(std::uint64_t number) const {
  if (!has_lost_.load(std::memory_order_acquire)) [[likely]]
    return {};
  const std::lock_guard lock(mutex_);
  for (const Lost& lost : lost_)
    if (lost.first <= number && number <= lost.last)
      return {
          lost.failure.code(),
          lost.failure.message() +
              "; this tensor was written by the work that failed or beside it: compute it anew"};
  return {};
}

Status DeviceQueue::finish(bp_event* event, std::uint64_t number) {
  std::vector<bp_event*> owed;
  Status kept, found;
  {
    const std::lock_guard lock(mutex_);
    owed.swap(owed_);
    kept = std::exchange(failure_, {});
  }
  owed.push_back(event);
  for (bp_event* one : owed) {
    Status status = device_.wait(one);
    if (found.ok()) found = told(std::move(status));
    give_event(one);
  }
  {
    const std::lock_guard lock(mutex_);
    work_count_ = 0;
  }
  note(number, found);
  return kept.ok() ? found : kept;
}

void DeviceQueue::keep(Status failure) {
  if (failure.ok()) return;
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = std::move(failure);
}

void DeviceQueue::keep_found(Status failure) {
  if (failure.ok()) return;
  note(submitted_.load(std::memory_order_relaxed), failure);
  keep(std::move(failure));
}

void DeviceQueue::drain() { keep(synchronize()); }

Status DeviceQueue::poll() {
  std::vector<bp_event*> owed;
  {
    const std::lock_guard lock(mutex_);
    owed.swap(owed_);
  }
  for (std::size_t i = 0; i < owed.size(); ++i) {
    Result<bool> done = device_.wait_for(owed[i], 0);
    if (done.ok() && !*done) {
      const std::lock_guard lock(mutex_);
      owed_.insert(owed_.begin(), owed.begin() + static_cast<std::ptrdiff_t>(i), owed.end());
      break;
    }
    if (!done.ok()) keep_found(told(done.take_status()));
    give_event(owed[i]);
  }
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, {});
}

Status DeviceQueue::copy_to_host(const bp_range& source, void* target, CopyCause cause) {
  bp_order after = order();
  if (stream_ != nullptr) {
    BP_ASSIGN_OR_RETURN(after.signal, take_event());
  }
  const std::uint64_t number = submitted_.load(std::memory_order_relaxed);
  const bp_range to{nullptr, target, 0, source.size_bytes};
  if (Status status = device_.copy_async(source, to, cause, after); !status.ok()) {
    give_event(after.signal);
    return status;
  }
  return stream_ != nullptr ? finish(after.signal, number) : Status();
}

Status DeviceQueue::synchronize() {
  if (stream_ == nullptr) return {};
  BP_ASSIGN_OR_RETURN(bp_event* const event, take_event());
  const std::uint64_t number = submitted_.load(std::memory_order_relaxed);
  if (Status status = mark(event); !status.ok()) {
    give_event(event);
    return status;
  }
  return finish(event, number);
}

}  // namespace backplane::runtime
