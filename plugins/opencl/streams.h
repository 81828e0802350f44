// Streams are in-order queues, events the driver's.
#pragma once

#include <memory>
#include <mutex>

#include "context.h"

namespace backplane::opencl {

class ClStream final : public sdk::Stream {
 public:
  explicit ClStream(cl_command_queue queue) : queue_(queue) {}
  ~ClStream() override { clReleaseCommandQueue(queue_); }  // its work goes on
  cl_command_queue queue() const { return queue_; }

 private:
  cl_command_queue queue_;
};

class ClEvent final : public sdk::Event {
 public:
  ~ClEvent() override;
  Status query(bool& out_done) override;
  Status wait(std::uint64_t timeout_ns) override;
  void arm(cl_event event);      // owned
  cl_event find_latest() const;  // owned by the caller; null: complete

 private:
  mutable std::mutex mutex_;
  cl_event latest_ = nullptr;
};

// Events that an order waits for; owned.
std::vector<cl_event> waits_of(const sdk::Order& order);

}  // namespace backplane::opencl
