// When the device did what: the driver's events around each command, on the host's clock.
#pragma once

#include <backplane/kernels/target.hpp>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "memory.h"

namespace backplane::cuda {

using kernels::Work;

class Profile {
 public:
  // A command's first event; owned.
  struct Span {
    EventHandle begin = nullptr;
    explicit operator bool() const { return begin != nullptr; }
  };

  // The context is the thread's in all of these. What was collected before is dropped.
  Status begin(StreamHandle stream);
  bool is_active() const { return active_.load(std::memory_order_relaxed); }
  Span begin_span(StreamHandle stream);
  void end_span(Span span, StreamHandle stream, std::shared_ptr<const Work> work,
                std::uint64_t call_id);
  // Waits for what was collected and gives it to the sink.
  Status end(std::uint32_t device, bp_profile_sink* sink);

 private:
  struct Pending {
    EventHandle begin, end;  // owned
    std::shared_ptr<const Work> work;
    std::uint64_t call_id;
    std::uint32_t queue;
  };
  static EventHandle record(StreamHandle stream);
  void clear();
  std::uint32_t number_of(StreamHandle stream);

  std::atomic<bool> active_{false};
  std::mutex mutex_;
  EventHandle first_ = nullptr;  // at first_ns_, give or take the uncertainty
  std::uint64_t first_ns_ = 0, uncertainty_ns_ = 0;
  std::deque<Pending> pending_;
  std::vector<StreamHandle> queues_;  // by number
  std::uint64_t dropped_ = 0;
};

}  // namespace backplane::cuda
