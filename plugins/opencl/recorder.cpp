#include "recorder.h"

namespace backplane::opencl {

using kernels::Bound;
using kernels::Extent;

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

Status Recorder::launch(const kernels::Program& program, std::span<const Bound> arguments,
                        const Extent& items, const Extent& group,
                        const std::shared_ptr<const Work>& work) {
  const auto& built = static_cast<const ClProgram&>(program);
  auto kernel = built.take();
  if (!kernel.ok()) return kernel.status();
  cl_int code = CL_SUCCESS;
  cl_uint at = 0;
  for (const Bound& a : arguments) {
    if (!a.is_memory) {
      code |= clSetKernelArg(*kernel, at++, sizeof a.bits, &a.bits);
      continue;
    }
    const Place place = a.address == nullptr ? Place{} : place_of(a.address);
    code |= clSetKernelArg(*kernel, at++, sizeof(cl_mem), &place.memory);
    code |= clSetKernelArg(*kernel, at++, sizeof place.offset, &place.offset);
  }
  Status status;
  if (code != CL_SUCCESS)
    status = driver_error("clSetKernelArg", code);
  else
    status = enqueue("clEnqueueNDRangeKernel", work, [&](cl_event* event) {
      return clEnqueueNDRangeKernel(queue_, *kernel, 3, nullptr, items.data(), group.data(),
                                    wait_count(), waits(), event);
    });
  built.give(*kernel);
  return status;
}

Status Recorder::fill_zero(std::byte* address, std::uint64_t bytes,
                           const std::shared_ptr<const Work>& work) {
  // Drivers write pattern by pattern: the longest that fits.
  static constexpr cl_uchar kZeros[128] = {};
  const Place place = place_of(address);
  const std::size_t pattern =
      std::min<std::size_t>(sizeof kZeros, (place.offset | bytes) & -(place.offset | bytes));
  return enqueue("clEnqueueFillBuffer", work, [&](cl_event* event) {
    return clEnqueueFillBuffer(queue_, place.memory, kZeros, pattern, place.offset, bytes,
                               wait_count(), waits(), event);
  });
}

Result<std::byte*> Recorder::fault_word(const std::shared_ptr<const Work>& work) {
  if (fault_ == nullptr) {
    auto made = context_.faults().take();
    if (!made.ok()) return made.status();
    fault_ = std::move(*made);
    if (!fault_->on_host())
      BP_SDK_RETURN_IF_ERROR(fill_zero(fault_->memory().address(), Fault::kBytes, work));
  }
  return fault_->memory().address();
}

Result<cl_event> Recorder::close() {
  static const auto work = std::make_shared<const Work>(Work{"what kernels found wrong", {}});
  if (fault_ != nullptr && !fault_->on_host())
    BP_SDK_RETURN_IF_ERROR(enqueue("clEnqueueReadBuffer", work, [&](cl_event* event) {
      return clEnqueueReadBuffer(queue_, fault_->memory().get(), CL_FALSE, 0, Fault::kBytes,
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

Result<cl_event> Recorder::finish(const Status& status) {
  auto event = close();
  if (status.ok()) return event;
  if (event.ok()) {
    clWaitForEvents(1, &*event);
    clReleaseEvent(*event);
  }
  return status;
}

}  // namespace backplane::opencl
