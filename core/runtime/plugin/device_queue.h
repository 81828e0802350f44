// The one in-order stream of a device for work that outlives the call that submits it: values that
// stay on the device between calls are written and read in its order.
#pragma once

#include <backplane/plugin.h>

#include <mutex>
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

 private:
  Result<bp_event*> take_event();
  void give_event(bp_event* event);
  void keep(Status failure);
  Status mark(bp_event* event);
  // Waits for an event of the queue's own, and for those that stand for events of others.
  Status finish(bp_event* event);

  Device& device_;
  bp_stream* stream_;  // owned; null on a device without streams
  std::mutex mutex_;   // guards what follows; not held over a plugin call
  std::vector<bp_event*> free_events_;
  std::vector<bp_event*> owed_;  // signalled before an event of others: they take its failure too
  Status failure_;               // nobody was told yet
};

}  // namespace backplane::runtime
