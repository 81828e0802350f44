#include "launch.h"

namespace backplane::opencl {

Recorder*& Recorder::current() {
  thread_local Recorder* recorder = nullptr;
  return recorder;
}

Recorder::~Recorder() {
  for (cl_event event : waits_) clReleaseEvent(event);
  if (last_ != nullptr) clReleaseEvent(last_);
}

void Recorder::keep(cl_event event) {
  if (last_ != nullptr) clReleaseEvent(last_);
  last_ = event;
  for (cl_event waited : waits_) clReleaseEvent(waited);
  waits_.clear();
}

template <class Command>
Status Recorder::enqueue(const char* call, const std::shared_ptr<const Work>& work,
                         Command&& command) {
  cl_event event = nullptr;
  const cl_int code = context_.retried(queue_, [&] { return command(&event); });
  if (code != CL_SUCCESS) {
    const Status status = context_.failure(call, code);
    return {status.code(), work->name + ": " + std::string(status.message())};
  }
  if (context_.is_profiling()) context_.profile().add(queue_, event, work, call_id_);
  keep(event);
  return {};
}

Status Recorder::launch(cl_kernel kernel, std::span<const std::size_t> items,
                        std::span<const std::size_t> group,
                        const std::shared_ptr<const Work>& work) {
  return enqueue("clEnqueueNDRangeKernel", work, [&](cl_event* event) {
    return clEnqueueNDRangeKernel(queue_, kernel, 3, nullptr, items.data(), group.data(),
                                  wait_count(), waits(), event);
  });
}

Status Recorder::fill(cl_mem memory, std::uint64_t offset, std::uint64_t bytes,
                      const std::shared_ptr<const Work>& work) {
  // Drivers write pattern by pattern: the longest that fits.
  static constexpr cl_uchar kZeros[128] = {};
  const std::size_t pattern =
      std::min<std::size_t>(sizeof kZeros, (offset | bytes) & -(offset | bytes));
  return enqueue("clEnqueueFillBuffer", work, [&](cl_event* event) {
    return clEnqueueFillBuffer(queue_, memory, kZeros, pattern, offset, bytes, wait_count(),
                               waits(), event);
  });
}

Result<Place> Recorder::fault_place(const std::shared_ptr<const Work>& work) {
  if (fault_ == nullptr) {
    auto made = context_.faults().take();
    if (!made.ok()) return made.status();
    fault_ = std::move(*made);
    if (!fault_->on_host()) BP_SDK_RETURN_IF_ERROR(fill(fault_->memory(), 0, Fault::kBytes, work));
  }
  return Place{fault_->memory(), 0};
}

Result<cl_event> Recorder::finish() {
  static const auto work = std::make_shared<const Work>(Work{"what kernels found wrong", {}});
  if (fault_ != nullptr && !fault_->on_host())
    BP_SDK_RETURN_IF_ERROR(enqueue("clEnqueueReadBuffer", work, [&](cl_event* event) {
      return clEnqueueReadBuffer(queue_, fault_->memory(), CL_FALSE, 0, Fault::kBytes,
                                 fault_->word(), wait_count(), waits(), event);
    }));
  if (last_ == nullptr) {
    cl_event event = nullptr;
    const cl_int code = clEnqueueMarkerWithWaitList(queue_, wait_count(), waits(), &event);
    if (code != CL_SUCCESS) return context_.failure("clEnqueueMarkerWithWaitList", code);
    keep(event);
  }
  if (const cl_int code = clFlush(queue_); code != CL_SUCCESS)
    return context_.failure("clFlush", code);
  return std::exchange(last_, nullptr);
}

Status LaunchList::run(const sdk::KernelCall& call) const {
  Recorder& recorder = *Recorder::current();
  for (const Launch& launch : *launches_) {
    const auto locate = [&](const Argument& a) -> Place {
      const std::byte* address = nullptr;
      switch (a.kind) {
        case Argument::kPlace:
          return {a.borrowed, a.offset};
        case Argument::kOperand:
          address = call.operands[a.index];
          break;
        case Argument::kResult:
          address = call.results[a.index];
          break;
        case Argument::kScratch:
          address = call.scratch;
          break;
        default:
          address = a.memory ? a.memory->address() : nullptr;
          break;
      }
      if (address == nullptr) return {};
      Place place = place_of(address);
      place.offset += a.offset;
      return place;
    };
    if (launch.program == nullptr) {
      const Place place = locate(launch.arguments[0]);
      BP_SDK_RETURN_IF_ERROR(recorder.fill(place.memory, place.offset, launch.fill_bytes, work_));
      continue;
    }
    auto kernel = launch.program->take();
    if (!kernel.ok()) return kernel.status();
    cl_int code = CL_SUCCESS;
    cl_uint at = 0;
    Status status;
    for (const Argument& a : launch.arguments) {
      if (a.kind == Argument::kOperandValue || a.kind == Argument::kBits) {
        std::uint64_t bits = a.offset;
        if (a.kind == Argument::kOperandValue)
          std::memcpy(&bits, call.operands[a.index], sizeof bits);
        code |= clSetKernelArg(*kernel, at++, sizeof bits, &bits);
        continue;
      }
      Place place;
      if (a.kind == Argument::kFault) {
        auto found = recorder.fault_place(work_);
        if (found.ok())
          place = *found;
        else
          status = found.status();
      } else {
        place = locate(a);
      }
      code |= clSetKernelArg(*kernel, at++, sizeof(cl_mem), &place.memory);
      code |= clSetKernelArg(*kernel, at++, sizeof place.offset, &place.offset);
    }
    if (status.ok())
      status = code == CL_SUCCESS ? recorder.launch(*kernel, launch.items, launch.group, work_)
                                  : driver_error("clSetKernelArg", code);
    launch.program->give(*kernel);
    BP_SDK_RETURN_IF_ERROR(std::move(status));
  }
  return {};
}

}  // namespace backplane::opencl
