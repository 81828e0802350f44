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
  // What the next signal of this stream answers for.
  void add_fault(std::shared_ptr<Fault> fault);
  std::vector<std::shared_ptr<Fault>> take_faults();

 private:
  cl_command_queue queue_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Fault>> faults_;
};

class ClEvent final : public sdk::Event {
 public:
  explicit ClEvent(std::shared_ptr<FaultPool> pool) : pool_(std::move(pool)) {}
  ~ClEvent() override;
  Status query(bool& out_done) override;
  Status wait(std::uint64_t timeout_ns) override;
  // Takes over the event. Waiting for it says what `faults` have found.
  void arm(cl_event event, std::vector<std::shared_ptr<Fault>> faults);
  cl_event find_latest() const;  // owned by the caller; null: complete

 private:
  class Completion;
  std::shared_ptr<FaultPool> pool_;
  mutable std::mutex mutex_;
  cl_event latest_ = nullptr;
  std::vector<std::shared_ptr<Fault>> faults_;
};

// Events that an order waits for; owned.
std::vector<cl_event> waits_of(const sdk::Order& order);

}  // namespace backplane::opencl
