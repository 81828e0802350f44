// The one in-order stream of a device for work that outlives the call that submits it: values that
// stay on the device between calls are written and read in its order.
#pragma once

#include <backplane/plugin.h>

#include <mutex>
#include <vector>

#include "core/base/status.h"

namespace backplane::runtime {

class Device;

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
  // Signals `event`, which nobody waits for yet, after all work submitted so far.
  Status signal(bp_event* event);
  // Waits for all work submitted so far. Its first failure is the answer.
  Status synchronize();

 private:
  Result<bp_event*> take_event();

  Device& device_;
  bp_stream* stream_;  // owned; null on a device without streams
  std::mutex mutex_;   // guards free_events_; not held over a plugin call
  std::vector<bp_event*> free_events_;
};

}  // namespace backplane::runtime
