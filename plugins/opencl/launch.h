// Kernels of a program: lists of launches whose arguments are bound at each call.
#pragma once

#include <backplane/sdk/program.hpp>

#include <array>

#include "context.h"
#include "faults.h"

namespace backplane::opencl {

// Where the launches of the current thread's execute call go.
class Recorder {
 public:
  Recorder(Context& context, cl_command_queue queue, std::vector<cl_event> waits,
           std::uint64_t call_id = 0)
      : context_(context), queue_(queue), waits_(std::move(waits)), call_id_(call_id) {}
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  Status launch(cl_kernel kernel, std::span<const std::size_t> items,
                std::span<const std::size_t> group, const std::shared_ptr<const Work>& work);
  Status fill(cl_mem memory, std::uint64_t offset, std::uint64_t bytes,
              const std::shared_ptr<const Work>& work);
  // Where kernels of this call say what they find wrong.
  Result<Place> fault_place(const std::shared_ptr<const Work>& work);
  // Completes with everything recorded; owned.
  Result<cl_event> finish();
  std::shared_ptr<Fault> take_fault() { return std::move(fault_); }  // null: nothing can be wrong
  static Recorder*& current();

 private:
  cl_uint wait_count() const { return static_cast<cl_uint>(waits_.size()); }
  const cl_event* waits() const { return waits_.empty() ? nullptr : waits_.data(); }
  void keep(cl_event event);
  // Enqueues one command of the call; `command` gives its event.
  template <class Command>
  Status enqueue(const char* call, const std::shared_ptr<const Work>& work, Command&& command);

  Context& context_;
  cl_command_queue queue_;
  std::vector<cl_event> waits_;  // of the first command
  std::uint64_t call_id_;
  cl_event last_ = nullptr;
  std::shared_ptr<Fault> fault_;
};

// One argument. Memory arguments are two of the kernel's: a buffer and an offset in bytes.
struct Argument {
  enum Kind : std::uint8_t {
    kOperand,
    kResult,
    kScratch,
    kMemory,
    kPlace,
    kFault,
    kOperandValue,
    kBits
  } kind;
  std::size_t index = 0;     // of the step's operand or result
  std::uint64_t offset = 0;  // bytes; the value for kBits
  std::shared_ptr<Memory> memory{};
  cl_mem borrowed = nullptr;  // of kPlace

  static Argument operand(std::size_t i) { return {kOperand, i}; }
  static Argument result(std::size_t i) { return {kResult, i}; }
  static Argument scratch(std::uint64_t offset) { return {kScratch, 0, offset}; }
  static Argument at(Place place) { return {kPlace, 0, place.offset, {}, place.memory}; }
  static Argument fault() { return {kFault}; }
  static Argument value(std::size_t i) { return {kOperandValue, i}; }
  static Argument bits(std::uint64_t bits) { return {kBits, 0, bits}; }
};

struct Launch {
  std::shared_ptr<const Program> program;  // null: fills `arguments[0]` with zero bytes
  std::vector<Argument> arguments;
  std::array<std::size_t, 3> items{1, 1, 1}, group{1, 1, 1};
  std::uint64_t fill_bytes = 0;
};

class LaunchList final : public sdk::Kernel {
 public:
  explicit LaunchList(std::shared_ptr<const Work> work) : work_(std::move(work)) {}
  Status run(const sdk::KernelCall& call) const override;
  std::uint64_t scratch_bytes() const override { return scratch_bytes_; }

  void add(Launch launch) { launches_->push_back(std::move(launch)); }
  // What was added so far and will be; for whom completes launches before the list runs.
  const std::shared_ptr<std::vector<Launch>>& launches() const { return launches_; }
  // Scratch memory for the whole list; returns its offset.
  std::uint64_t reserve(std::uint64_t bytes) {
    const std::uint64_t at = scratch_bytes_;
    scratch_bytes_ += (bytes + 63) / 64 * 64;
    return at;
  }

 private:
  std::shared_ptr<const Work> work_;
  std::shared_ptr<std::vector<Launch>> launches_ = std::make_shared<std::vector<Launch>>();
  std::uint64_t scratch_bytes_ = 0;
};

}  // namespace backplane::opencl
