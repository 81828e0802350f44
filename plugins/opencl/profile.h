// When the device did what: the timestamps of its events, on the host's clock.
#pragma once

#include <backplane/kernels/target.hpp>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory.h"

namespace backplane::opencl {

using kernels::Work;

class Profile {
 public:
  // `queue` writes timestamps. What was collected before is dropped.
  Status begin(cl_command_queue queue);
  bool is_active() const { return active_.load(std::memory_order_relaxed); }
  // Of a queue that writes timestamps.
  void add(cl_command_queue queue, cl_event event, std::shared_ptr<const Work> work,
           std::uint64_t call_id);
  // Waits for what was added and gives it to the sink.
  Status end(cl_command_queue queue, std::uint32_t device, bp_profile_sink* sink);

 private:
  // One moment on both clocks.
  struct Moment {
    std::uint64_t host_ns = 0, device_ns = 0, uncertainty_ns = UINT64_MAX;
  };
  struct Pending {
    cl_event event;  // owned
    cl_command_queue queue;
    std::shared_ptr<const Work> work;
    std::uint64_t call_id;
  };
  struct Done {
    std::shared_ptr<const Work> work;
    std::uint64_t call_id;
    std::uint32_t queue;
    std::uint64_t begin_ns, end_ns;  // of the device
  };
  static Result<Moment> look_at_clocks(cl_command_queue queue);
  void resolve_complete();
  void clear();
  std::uint32_t number_of(cl_command_queue queue);

  std::atomic<bool> active_{false};
  std::mutex mutex_;
  Moment first_;
  std::deque<Pending> pending_;
  std::vector<Done> done_;
  std::vector<cl_command_queue> queues_;  // by number
  std::uint64_t dropped_ = 0;
};

}  // namespace backplane::opencl
