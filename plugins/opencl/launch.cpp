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

Status Recorder::launch(cl_kernel kernel, std::span<const std::size_t> items,
                        std::span<const std::size_t> group) {
  cl_event event = nullptr;
  BP_CL_RETURN_IF_ERROR("clEnqueueNDRangeKernel",
                        clEnqueueNDRangeKernel(queue_, kernel, 3, nullptr, items.data(),
                                               group.data(), wait_count(), waits(), &event));
  keep(event);
  return {};
}

Status Recorder::fill(cl_mem memory, std::uint64_t offset, std::uint64_t bytes) {
  const cl_uchar zero = 0;
  cl_event event = nullptr;
  BP_CL_RETURN_IF_ERROR(
      "clEnqueueFillBuffer",
      clEnqueueFillBuffer(queue_, memory, &zero, 1, offset, bytes, wait_count(), waits(), &event));
  keep(event);
  return {};
}

Result<Place> Recorder::fault_place() {
  if (fault_ == nullptr) {
    auto made = context_.faults().take();
    if (!made.ok()) return made.status();
    fault_ = std::move(*made);
    if (!fault_->on_host()) BP_SDK_RETURN_IF_ERROR(fill(fault_->memory(), 0, Fault::kBytes));
  }
  return Place{fault_->memory(), 0};
}

Result<cl_event> Recorder::finish() {
  if (fault_ != nullptr && !fault_->on_host()) {
    cl_event event = nullptr;
    BP_CL_RETURN_IF_ERROR("clEnqueueReadBuffer",
                          clEnqueueReadBuffer(queue_, fault_->memory(), CL_FALSE, 0, Fault::kBytes,
                                              fault_->word(), wait_count(), waits(), &event));
    keep(event);
  }
  if (last_ == nullptr) {
    cl_event event = nullptr;
    BP_CL_RETURN_IF_ERROR("clEnqueueMarkerWithWaitList",
                          clEnqueueMarkerWithWaitList(queue_, wait_count(), waits(), &event));
    keep(event);
  }
  BP_CL_RETURN_IF_ERROR("clFlush", clFlush(queue_));
  return std::exchange(last_, nullptr);
}

Status LaunchList::run(const sdk::KernelCall& call) const {
  Recorder& recorder = *Recorder::current();
  for (const Launch& launch : launches_) {
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
      BP_SDK_RETURN_IF_ERROR(recorder.fill(place.memory, place.offset, launch.fill_bytes));
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
        auto found = recorder.fault_place();
        if (found.ok())
          place = *found;
        else
          status = found.status();
      } else {
        place = locate(a);
      }
      code |= clSetKernelArg(*kernel, at++, sizeof place.memory, &place.memory);
      code |= clSetKernelArg(*kernel, at++, sizeof place.offset, &place.offset);
    }
    if (status.ok())
      status = code == CL_SUCCESS ? recorder.launch(*kernel, launch.items, launch.group)
                                  : driver_error("clSetKernelArg", code);
    launch.program->give(*kernel);
    BP_SDK_RETURN_IF_ERROR(std::move(status));
  }
  return {};
}

}  // namespace backplane::opencl
