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
  // Takes over the stream.
  CudaStream(std::shared_ptr<Context> context, StreamHandle stream)
      : context_(std::move(context)), stream_(stream) {}
  ~CudaStream() override;  // its work goes on
  StreamHandle get() const { return stream_; }
  // What the next signal of this stream answers for.
  void add_fault(Fault fault);
  std::vector<Fault> take_faults();

 private:
  std::shared_ptr<Context> context_;
  StreamHandle stream_;
  std::mutex mutex_;
  std::vector<Fault> faults_;
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
