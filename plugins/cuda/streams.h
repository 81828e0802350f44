// Streams and events are the driver's.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "context.h"

namespace backplane::cuda {

using Fault = std::shared_ptr<std::uint32_t>;

class CudaStream final : public sdk::Stream {
 public:
  // `is_owned`: destroyed with this. Else it is PyTorch's, which reads what calls write without
  // asking this plugin.
  CudaStream(std::shared_ptr<Context> context, StreamHandle stream, bool is_owned)
      : context_(std::move(context)), stream_(stream), is_owned_(is_owned) {}
  ~CudaStream() override;  // its work goes on
  StreamHandle get() const { return stream_; }
  bool is_owned() const { return is_owned_; }
  // Of a stream of PyTorch's: marks a kernel that may find something wrong, and waits for the last
  // one marked.
  Status mark_fault();
  Status wait_for_faults();
  // What the next signal of this stream answers for.
  void add_fault(Fault fault);
  std::vector<Fault> take_faults();

 private:
  std::shared_ptr<Context> context_;
  StreamHandle stream_;
  bool is_owned_;
  std::mutex mutex_;  // guards what follows
  std::vector<Fault> faults_;
  EventHandle marked_ = nullptr;  // made with the first mark
};

class CudaEvent final : public sdk::Event {
 public:
  // Takes over the event, which was never recorded: it is complete.
  CudaEvent(std::shared_ptr<Context> context, EventHandle event)
      : context_(std::move(context)), event_(event) {}
  ~CudaEvent() override;
  EventHandle get() const { return event_; }
  Status query(bool& out_done) override;
  Status wait(std::uint64_t timeout_ns) override;
  // Completes with what `stream` has to do now. Waiting for it says what `faults` have found.
  Status record(StreamHandle stream, std::vector<Fault> faults);

 private:
  std::shared_ptr<Context> context_;
  EventHandle event_;
  std::mutex mutex_;
  std::vector<Fault> faults_;
};

}  // namespace backplane::cuda
