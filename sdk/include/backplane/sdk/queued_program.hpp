// A program whose calls are queued: what execute is given is copied, since it is read later.
#pragma once

#include <backplane/sdk/program.hpp>
#include <backplane/sdk/queue.hpp>

namespace backplane::sdk {

class QueuedProgram : public Executable {
 public:
  // `queues` lives as long as the device. `before` runs ahead of each call's program.
  QueuedProgram(Queues& queues, std::shared_ptr<ProgramExecutable> program,
                Worker::Work before = {})
      : queues_(queues), program_(std::move(program)), before_(std::move(before)) {
    inputs = program_->inputs;
    outputs = program_->outputs;
    dim_class_count = program_->dim_class_count;
  }

  Result<std::uint64_t> workspace_bytes(std::span<const std::int64_t> dims) override {
    return program_->workspace_bytes(dims);
  }

  Status execute(const Execution& call) override {
    auto kept = std::make_shared<KeptExecution>(call, inputs.size(), outputs.size(),
                                                program_->graph().dim_class_count());
    return queues_.submit(call.order(), false,
                          [kept, program = program_, before = before_]() -> Status {
                            if (before) BP_SDK_RETURN_IF_ERROR(before());
                            return program->execute(kept->call());
                          });
  }

 protected:
  ProgramExecutable& program() const { return *program_; }

 private:
  Queues& queues_;
  std::shared_ptr<ProgramExecutable> program_;
  Worker::Work before_;
};

}  // namespace backplane::sdk
