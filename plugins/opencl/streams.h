// Streams are in-order queues, events the driver's.
#pragma once

#include <memory>
#include <mutex>

#include "context.h"

namespace backplane::opencl {

class ClStream final : public sdk::Stream {
 public:
  // Takes over the queue.
  ClStream(std::shared_ptr<Context> context, cl_command_queue queue)
      : context_(std::move(context)), queue_(queue) {}
  ~ClStream() override { context_->release_queue(queue_); }  // its work goes on
  // One that writes timestamps while a profile is taken.
  cl_command_queue queue();
  // What the next signal of this stream answers for.
  void add_fault(std::shared_ptr<Fault> fault);
  std::vector<std::shared_ptr<Fault>> take_faults();

 private:
  std::shared_ptr<Context> context_;
  std::mutex mutex_;
  cl_command_queue queue_;
  bool is_profiled_ = false;
  std::vector<std::shared_ptr<Fault>> faults_;
};

class ClEvent final : public sdk::Event {
 public:
  explicit ClEvent(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  ~ClEvent() override;
  Status query(bool& out_done) override;
  Status wait(std::uint64_t timeout_ns) override;
  // Takes over the event. Waiting for it says what `faults` have found.
  void arm(cl_event event, std::vector<std::shared_ptr<Fault>> faults);
  cl_event find_latest() const;  // owned by the caller; null: complete

 private:
  class Completion;
  std::shared_ptr<Context> context_;
  mutable std::mutex mutex_;
  cl_event latest_ = nullptr;
  std::vector<std::shared_ptr<Fault>> faults_;
};

// Events that an order waits for; owned.
std::vector<cl_event> waits_of(const sdk::Order& order);

}  // namespace backplane::opencl
