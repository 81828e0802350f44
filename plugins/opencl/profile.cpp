#include "profile.h"

#include <algorithm>

namespace backplane::opencl {
namespace {

constexpr std::size_t kPendingLimit = 1024;  // events kept before the complete ones are read
constexpr std::size_t kDoneLimit = std::size_t{1} << 20;
constexpr int kLooks = 5;

std::uint64_t host_ns() { return sdk::host().clock_ns(sdk::host().host); }

}  // namespace

// The device's clock is read where a marker is enqueued, or, by drivers that tell only when it was
// done, until it was waited for; the narrowest of a few looks counts.
Result<Profile::Moment> Profile::look_at_clocks(cl_command_queue queue) {
  Moment best;
  for (int i = 0; i < kLooks; ++i) {
    cl_event event = nullptr;
    const std::uint64_t before = host_ns();
    BP_CL_RETURN_IF_ERROR("clEnqueueMarkerWithWaitList",
                          clEnqueueMarkerWithWaitList(queue, 0, nullptr, &event));
    std::uint64_t after = host_ns();
    cl_ulong at = 0;
    cl_int code = clWaitForEvents(1, &event);
    const std::uint64_t done = host_ns();
    const auto read = [&](cl_profiling_info moment) {
      if (code == CL_SUCCESS)
        code = clGetEventProfilingInfo(event, moment, sizeof at, &at, nullptr);
    };
    read(CL_PROFILING_COMMAND_QUEUED);
    if (at == 0) {
      read(CL_PROFILING_COMMAND_END);
      after = done;
    }
    clReleaseEvent(event);
    BP_CL_RETURN_IF_ERROR("clGetEventProfilingInfo", code);
    const std::uint64_t half = (after - before) / 2;
    if (half < best.uncertainty_ns) best = {before + half, at, half};
  }
  return best;
}

void Profile::clear() {
  for (const Pending& p : pending_) clReleaseEvent(p.event);
  pending_.clear();
  done_.clear();
  dropped_ = 0;
}

Status Profile::begin(cl_command_queue queue) {
  auto moment = look_at_clocks(queue);
  if (!moment.ok()) return moment.status();
  const std::lock_guard lock(mutex_);
  clear();
  first_ = *moment;
  active_.store(true, std::memory_order_relaxed);
  return {};
}

std::uint32_t Profile::number_of(cl_command_queue queue) {
  const auto found = std::find(queues_.begin(), queues_.end(), queue);
  const auto at = static_cast<std::uint32_t>(found - queues_.begin());
  if (found == queues_.end()) queues_.push_back(queue);
  return at;
}

void Profile::add(cl_command_queue queue, cl_event event, std::shared_ptr<const Work> work,
                  std::uint64_t call_id) {
  clRetainEvent(event);
  const std::lock_guard lock(mutex_);
  pending_.push_back({event, queue, std::move(work), call_id});
  if (pending_.size() >= kPendingLimit) resolve_complete();
}

void Profile::resolve_complete() {
  while (!pending_.empty()) {
    Pending& p = pending_.front();
    cl_int state = CL_COMPLETE;
    clGetEventInfo(p.event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, nullptr);
    if (state > CL_COMPLETE) return;
    cl_ulong begin = 0, end = 0;
    const bool known = clGetEventProfilingInfo(p.event, CL_PROFILING_COMMAND_START, sizeof begin,
                                               &begin, nullptr) == CL_SUCCESS &&
                       clGetEventProfilingInfo(p.event, CL_PROFILING_COMMAND_END, sizeof end, &end,
                                               nullptr) == CL_SUCCESS;
    if (known && done_.size() < kDoneLimit)
      done_.push_back({std::move(p.work), p.call_id, number_of(p.queue), begin, end});
    else
      ++dropped_;
    clReleaseEvent(p.event);
    pending_.pop_front();
  }
}

Status Profile::end(cl_command_queue queue, std::uint32_t device, bp_profile_sink* sink) {
  active_.store(false, std::memory_order_relaxed);
  auto moment = look_at_clocks(queue);
  const std::lock_guard lock(mutex_);
  for (const Pending& p : pending_) clWaitForEvents(1, &p.event);
  resolve_complete();
  if (!moment.ok()) {
    clear();
    return moment.status();
  }
  // The clocks may run at different speeds: a line through both moments.
  const double device_span = static_cast<double>(moment->device_ns - first_.device_ns);
  const double speed =
      device_span > 0 ? static_cast<double>(moment->host_ns - first_.host_ns) / device_span : 1;
  const auto on_host = [&](std::uint64_t device_ns) {
    const double after = static_cast<double>(static_cast<std::int64_t>(device_ns) -
                                             static_cast<std::int64_t>(first_.device_ns));
    return first_.host_ns + static_cast<std::uint64_t>(static_cast<std::int64_t>(after * speed));
  };
  for (const Done& d : done_) {
    auto range = sdk::make<bp_profile_range>();
    range.name = sdk::raw(d.work->name);
    range.begin_ns = on_host(d.begin_ns);
    range.end_ns = on_host(d.end_ns);
    range.uncertainty_ns = std::max(first_.uncertainty_ns, moment->uncertainty_ns);
    range.call_id = d.call_id;
    range.node_ids = d.work->nodes.data();
    range.node_count = d.work->nodes.size();
    range.device = device;
    range.queue = d.queue;
    sdk::host().profile_add(sink, &range);
  }
  const std::uint64_t dropped = dropped_;
  clear();
  if (dropped != 0) {
    const std::string text =
        "the profile is incomplete: " + std::to_string(dropped) + " commands are missing";
    sdk::host().log(sdk::host().host, BP_LOG_WARNING, sdk::raw(text));
  }
  return {};
}

}  // namespace backplane::opencl
