#include "streams.h"

#include <chrono>
#include <condition_variable>

namespace backplane::opencl {

// Shared by a waiting thread and the driver's, which may call after the wait has ended.
class ClEvent::Completion {
 public:
  static void CL_CALLBACK notify(cl_event, cl_int, void* data) {
    const std::unique_ptr<std::shared_ptr<Completion>> own(
        static_cast<std::shared_ptr<Completion>*>(data));
    {
      const std::lock_guard lock((*own)->mutex_);
      (*own)->done_ = true;
    }
    (*own)->changed_.notify_all();
  }
  bool wait(std::uint64_t timeout_ns) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [&] { return done_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

ClEvent::~ClEvent() {
  if (latest_ != nullptr) clReleaseEvent(latest_);
}

cl_command_queue ClStream::queue() {
  const bool wanted = context_->is_profiling();
  const std::lock_guard lock(mutex_);
  if (wanted == is_profiled_) [[likely]]
    return queue_;
  auto made = context_->create_queue(wanted);
  if (!made.ok()) return queue_;
  clFinish(queue_);  // the new queue's work comes after it
  context_->release_queue(queue_);
  queue_ = *made;
  is_profiled_ = wanted;
  return queue_;
}

void ClStream::add_fault(std::shared_ptr<Fault> fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(std::move(fault));
}
std::vector<std::shared_ptr<Fault>> ClStream::take_faults() {
  const std::lock_guard lock(mutex_);
  return std::exchange(faults_, {});
}

void ClEvent::arm(cl_event event, std::vector<std::shared_ptr<Fault>> faults) {
  cl_event old = event;
  {
    const std::lock_guard lock(mutex_);
    std::swap(old, latest_);
    faults_.swap(faults);
  }
  if (old != nullptr) clReleaseEvent(old);
}

cl_event ClEvent::find_latest() const {
  const std::lock_guard lock(mutex_);
  if (latest_ != nullptr) clRetainEvent(latest_);
  return latest_;
}

Status ClEvent::query(bool& out_done) {
  out_done = true;
  cl_event event = find_latest();
  if (event == nullptr) return {};
  cl_int state = CL_COMPLETE;
  const cl_int code =
      clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, nullptr);
  clReleaseEvent(event);
  if (code != CL_SUCCESS) return context_->failure("clGetEventInfo", code);
  if (state < 0) {
    out_done = true;
    return context_->failure("the device's work", state);
  }
  out_done = state == CL_COMPLETE;
  if (!out_done) return {};
  const std::lock_guard lock(mutex_);
  for (const auto& fault : faults_) BP_SDK_RETURN_IF_ERROR(context_->faults().outcome(*fault));
  return {};
}

Status ClEvent::wait(std::uint64_t timeout_ns) {
  if (timeout_ns == UINT64_MAX) {
    cl_event event = find_latest();
    if (event == nullptr) return {};
    const cl_int code = context_->wait(event);
    clReleaseEvent(event);
    if (code != CL_SUCCESS && code != CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
      return context_->failure("clWaitForEvents", code);
    bool done = false;
    return query(done);
  }
  bool done = false;
  BP_SDK_RETURN_IF_ERROR(query(done));
  cl_event event = done ? nullptr : find_latest();
  if (event == nullptr) return {};
  // The driver's wait has no limit: its callback wakes this thread instead.
  auto state = std::make_shared<Completion>();
  auto owned = std::make_unique<std::shared_ptr<Completion>>(state);
  const cl_int code = clSetEventCallback(event, CL_COMPLETE, Completion::notify, owned.get());
  clReleaseEvent(event);
  if (code != CL_SUCCESS) return context_->failure("clSetEventCallback", code);
  static_cast<void>(owned.release());  // the callback's
  if (!state->wait(timeout_ns)) return {BP_TIMEOUT, "the device's work is not done"};
  return query(done);
}

std::vector<cl_event> waits_of(const sdk::Order& order) {
  std::vector<cl_event> events;
  for (std::size_t i = 0; i < order.wait_count(); ++i)
    if (cl_event event = static_cast<ClEvent*>(order.wait(i))->find_latest())
      events.push_back(event);
  return events;
}

}  // namespace backplane::opencl
