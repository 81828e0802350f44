// The one in-order stream of a device for work that outlives the call that submits it: values that
// stay on the device between calls are written and read in its order.
#pragma once

#include <backplane/plugin.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace backplane::runtime {

class Device;
enum class CopyCause : std::uint8_t;

// Thread-safe. On a device without streams every call is over when it returns, and all of this is
// a no-op.
class DeviceQueue {
 public:
  // `device` owns the queue.
  DeviceQueue(Device& device, bp_stream* stream) : device_(device), stream_(stream) {}
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  bp_stream* stream() const { return stream_; }
  bp_order order() const;
  // Signals `event`, which nobody waits for yet, after all work submitted so far. A failure of that
  // work is kept for the next answer, whether or not somebody asks the event.
  Status signal(bp_event* event);
  // Copies after all work submitted so far, and waits. A failure of that work is the answer: what
  // was read is no result.
  Status copy_to_host(const bp_range& source, void* target, CopyCause cause);
  // Waits for all work submitted so far. Its first failure is the answer.
  Status synchronize();
  // Waits as well, for whoever has nobody to tell: a failure is kept for the next answer.
  void drain();
  // The failure that an event of others missed; asks, and waits for nothing.
  Status poll();

  // Names what was just submitted, for a failure that comes later. Nothing is allocated.
  void note_work(std::string_view graph, std::string_view nodes);
  // What is submitted next may be refused for its data, an index say: then what it writes holds
  // anything, and so may what is computed from here on.
  void note_refusable();
  // Whoever writes to memory of the device keeps the number of that work; numbers rise.
  std::uint64_t next_number() { return submitted_.fetch_add(1, std::memory_order_relaxed) + 1; }
  // What is known against that work: a failure is told of the queue, not of one call, so that all
  // since the last good answer may have been its victim. Ok of work that is under way.
  Status failure_of(std::uint64_t number) const;

 private:
  struct Lost {
    std::uint64_t first, last;  // numbers
    Status failure;
  };
  struct Work {
    std::array<char, 160> text;
  };
  // A failure of work that nobody waited for one by one: with the last ones of it.
  Status told(Status failure) const;
  Result<bp_event*> take_event();
  void give_event(bp_event* event);
  void keep(Status failure);        // that is noted
  void keep_found(Status failure);  // of all that was submitted so far
  // The answer to all work up to that number.
  void note(std::uint64_t number, const Status& status);
  Status mark(bp_event* event);
  // Waits for an event of the queue's own, and for those that stand for events of others.
  // `number`: of the last work before the event.
  Status finish(bp_event* event, std::uint64_t number);

  Device& device_;
  bp_stream* stream_;         // owned; null on a device without streams
  mutable std::mutex mutex_;  // guards what follows; not held over a plugin call
  std::vector<bp_event*> free_events_;
  std::vector<bp_event*> owed_;  // signalled before an event of others: they take its failure too
  Status failure_;               // nobody was told yet
  std::uint64_t answered_ = 0;   // up to here all went well, or stands in lost_
  std::uint64_t refusable_ = 0;  // the first since then that may be refused; 0: none
  std::vector<Lost> lost_;
  std::array<Work, 4> works_{};   // the last ones; number n at n % 4
  std::uint64_t work_count_ = 0;  // since the last good answer
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<bool> has_lost_{false};
};

}  // namespace backplane::runtime
