#include "profile.h"

#include <algorithm>

namespace backplane::cuda {
namespace {

constexpr std::size_t kPendingLimit = std::size_t{1} << 20;
constexpr int kLooks = 5;

std::uint64_t host_ns() { return sdk::host().clock_ns(sdk::host().host); }

}  // namespace

// Null where the driver makes none: a command that is not in the profile.
EventHandle Profile::record(StreamHandle stream) {
  EventHandle event = nullptr;
  if (driver().cuEventCreate(&event, 0) != kSuccess) return nullptr;
  if (driver().cuEventRecord(event, stream) == kSuccess) return event;
  driver().cuEventDestroy_v2(event);
  return nullptr;
}

void Profile::clear() {
  for (const Pending& p : pending_)
    for (EventHandle event : {p.begin, p.end}) driver().cuEventDestroy_v2(event);
  pending_.clear();
  if (first_ != nullptr) driver().cuEventDestroy_v2(std::exchange(first_, nullptr));
  dropped_ = 0;
}

// An event's moment lies between its recording and the end of a wait for it; the narrowest of a few
// looks counts.
Status Profile::begin(StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  clear();
  uncertainty_ns_ = UINT64_MAX;
  for (int i = 0; i < kLooks; ++i) {
    const std::uint64_t before = host_ns();
    EventHandle event = record(stream);
    if (event == nullptr) return {BP_INTERNAL, "the driver records no events"};
    const Code code = driver().cuEventSynchronize(event);
    const std::uint64_t half = (host_ns() - before) / 2;
    if (code != kSuccess || half >= uncertainty_ns_) {
      driver().cuEventDestroy_v2(event);
      if (code != kSuccess) return driver_error("cuEventSynchronize", code);
      continue;
    }
    if (first_ != nullptr) driver().cuEventDestroy_v2(first_);
    first_ = event;
    first_ns_ = before + half;
    uncertainty_ns_ = half;
  }
  active_.store(true, std::memory_order_relaxed);
  return {};
}

std::uint32_t Profile::number_of(StreamHandle stream) {
  const auto found = std::find(queues_.begin(), queues_.end(), stream);
  const auto at = static_cast<std::uint32_t>(found - queues_.begin());
  if (found == queues_.end()) queues_.push_back(stream);
  return at;
}

Profile::Span Profile::begin_span(StreamHandle stream) { return {record(stream)}; }

void Profile::end_span(Span span, StreamHandle stream, std::shared_ptr<const Work> work,
                       std::uint64_t call_id) {
  EventHandle end = record(stream);
  const std::lock_guard lock(mutex_);
  if (end != nullptr && pending_.size() < kPendingLimit) {
    pending_.push_back({span.begin, end, std::move(work), call_id, number_of(stream)});
    return;
  }
  ++dropped_;
  for (EventHandle event : {span.begin, end})
    if (event != nullptr) driver().cuEventDestroy_v2(event);
}

Status Profile::end(std::uint32_t device, bp_profile_sink* sink) {
  if (!is_active()) return {BP_INVALID_ARGUMENT, "no profile was begun"};
  active_.store(false, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  const auto moment = [&](EventHandle event, std::uint64_t& out) {
    float ms = 0;
    if (driver().cuEventSynchronize(event) != kSuccess ||
        driver().cuEventElapsedTime(&ms, first_, event) != kSuccess)
      return false;
    out = first_ns_ + static_cast<std::uint64_t>(std::max(static_cast<double>(ms), 0.0) * 1e6);
    return true;
  };
  for (const Pending& p : pending_) {
    auto range = sdk::make<bp_profile_range>();
    if (!moment(p.begin, range.begin_ns) || !moment(p.end, range.end_ns)) {
      ++dropped_;
      continue;
    }
    range.name = sdk::raw(p.work->name);
    range.uncertainty_ns = uncertainty_ns_;
    range.call_id = p.call_id;
    range.node_ids = p.work->nodes.data();
    range.node_count = p.work->nodes.size();
    range.device = device;
    range.queue = p.queue;
    sdk::host().profile_add(sink, &range);
  }
  if (dropped_ != 0)
    sdk::log(BP_LOG_WARNING,
             "the profile is incomplete: " + std::to_string(dropped_) + " commands are missing");
  clear();
  return {};
}

}  // namespace backplane::cuda
