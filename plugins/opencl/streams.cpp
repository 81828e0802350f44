#include "streams.h"

#include <chrono>
#include <thread>

namespace backplane::opencl {

ClEvent::~ClEvent() {
  if (latest_ != nullptr) clReleaseEvent(latest_);
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
  BP_CL_RETURN_IF_ERROR("clGetEventInfo", code);
  if (state < 0) return driver_error("the device's work", state);
  out_done = state == CL_COMPLETE;
  if (!out_done) return {};
  const std::lock_guard lock(mutex_);
  for (const auto& fault : faults_) BP_SDK_RETURN_IF_ERROR(pool_->outcome(*fault));
  return {};
}

Status ClEvent::wait(std::uint64_t timeout_ns) {
  if (timeout_ns == UINT64_MAX) {
    cl_event event = find_latest();
    if (event == nullptr) return {};
    const cl_int code = clWaitForEvents(1, &event);
    clReleaseEvent(event);
    if (code != CL_SUCCESS && code != CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
      return driver_error("clWaitForEvents", code);
    bool done = false;
    return query(done);
  }
  // The driver's wait has no limit.
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    bool done = false;
    BP_SDK_RETURN_IF_ERROR(query(done));
    if (done) return {};
    if (std::chrono::steady_clock::now() - start >= std::chrono::nanoseconds(timeout_ns))
      return {BP_TIMEOUT, "the device's work is not done"};
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

std::vector<cl_event> waits_of(const sdk::Order& order) {
  std::vector<cl_event> events;
  for (std::size_t i = 0; i < order.wait_count(); ++i)
    if (cl_event event = static_cast<ClEvent*>(order.wait(i))->find_latest())
      events.push_back(event);
  return events;
}

}  // namespace backplane::opencl
