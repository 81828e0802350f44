// Where the launches of one call go: an in-order queue.
#pragma once

#include <backplane/kernels/target.hpp>

#include "context.h"
#include "faults.h"

namespace backplane::opencl {

class Recorder final : public kernels::Launcher {
 public:
  Recorder(Context& context, cl_command_queue queue, std::vector<cl_event> waits,
           std::uint64_t call_id = 0)
      : context_(context), queue_(queue), waits_(std::move(waits)), call_id_(call_id) {}
  ~Recorder() override;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  Status launch(const kernels::Program& program, std::span<const kernels::Bound> arguments,
                const kernels::Extent& items, const kernels::Extent& group,
                const std::shared_ptr<const Work>& work) override;
  Status fill_zero(std::byte* address, std::uint64_t bytes,
                   const std::shared_ptr<const Work>& work) override;
  Result<std::byte*> fault_word(const std::shared_ptr<const Work>& work) override;

  // Ends the recording of what went well so far, or not: completes with everything recorded; owned.
  // What was queued before a failure still runs, and is waited for: it must not outlive the call's
  // buffers.
  Result<cl_event> finish(const Status& status);
  std::shared_ptr<Fault> take_fault() { return std::move(fault_); }  // null: nothing can be wrong

 private:
  cl_uint wait_count() const { return static_cast<cl_uint>(waits_.size()); }
  const cl_event* waits() const { return waits_.empty() ? nullptr : waits_.data(); }
  void keep(cl_event event);
  // Enqueues one command of the call; `command` gives its event.
  template <class Command>
  Status enqueue(const char* call, const std::shared_ptr<const Work>& work, Command&& command);
  Result<cl_event> close();

  Context& context_;
  cl_command_queue queue_;
  std::vector<cl_event> waits_;  // of the first command
  std::uint64_t call_id_;
  cl_event last_ = nullptr;
  std::shared_ptr<Fault> fault_;
};

}  // namespace backplane::opencl
