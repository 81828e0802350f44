#include "core/runtime/device_queue.h"

#include "core/runtime/device.h"

namespace backplane::runtime {

DeviceQueue::~DeviceQueue() {
  for (bp_event* event : free_events_) device_.release_event(event);
  device_.release_stream(stream_);
}

bp_order DeviceQueue::order() const {
  bp_order order{};
  order.stream = stream_;
  return order;
}

Status DeviceQueue::signal(bp_event* event) {
  if (event == nullptr) return {};
  bp_order after = order();
  after.signal = event;
  const bp_range nothing{};
  return device_.copy_async(nothing, nothing, CopyCause::kOther, after);
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

Status DeviceQueue::synchronize() {
  if (stream_ == nullptr) return {};
  BP_ASSIGN_OR_RETURN(bp_event* const event, take_event());
  Status status = signal(event);
  if (status.ok()) status = device_.wait(event);
  const std::lock_guard lock(mutex_);
  free_events_.push_back(event);
  return status;
}

}  // namespace backplane::runtime
