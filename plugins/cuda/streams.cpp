#include "streams.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace backplane::cuda {

CudaStream::~CudaStream() {
  const Current current(context_->get());
  if (marked_ != nullptr) driver().cuEventDestroy_v2(marked_);
  if (is_owned_) driver().cuStreamDestroy_v2(stream_);
}
Status CudaStream::mark_fault() {
  const std::lock_guard lock(mutex_);
  if (marked_ == nullptr) BP_CUDA_RETURN_IF_ERROR(cuEventCreate, &marked_, kEventWithoutTiming);
  const Code code = driver().cuEventRecord(marked_, stream_);
  return code == kSuccess ? Status() : context_->failure("cuEventRecord", code);
}
Status CudaStream::wait_for_faults() {
  EventHandle marked = nullptr;
  {
    const std::lock_guard lock(mutex_);
    marked = marked_;
  }
  const Code code = driver().cuEventSynchronize(marked);
  return code == kSuccess ? Status() : context_->failure("the device's work", code);
}
void CudaStream::add_fault(Fault fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(std::move(fault));
}
std::vector<Fault> CudaStream::take_faults() {
  const std::lock_guard lock(mutex_);
  return std::exchange(faults_, {});
}

CudaEvent::~CudaEvent() {
  const Current current(context_->get());
  driver().cuEventDestroy_v2(event_);
}

Status CudaEvent::record(StreamHandle stream, std::vector<Fault> faults) {
  {
    const std::lock_guard lock(mutex_);
    faults_.swap(faults);
  }
  const Code code = driver().cuEventRecord(event_, stream);
  return code == kSuccess ? Status() : context_->failure("cuEventRecord", code);
}

Status CudaEvent::query(bool& out_done) {
  const Current current(context_->get());
  const Code code = driver().cuEventQuery(event_);
  out_done = code != kNotReady;
  if (!out_done) return {};
  if (code != kSuccess) return context_->failure("the device's work", code);
  const std::lock_guard lock(mutex_);
  for (const Fault& fault : faults_) BP_SDK_RETURN_IF_ERROR(context_->faults().outcome(*fault));
  return {};
}

// The driver's wait has no limit and takes a whole core: it looks often at first, then sleeps
// between looks, never longer than a small part of what it has waited for.
Status CudaEvent::wait(std::uint64_t timeout_ns) {
  using std::chrono::nanoseconds;
  constexpr nanoseconds kLook(200'000), kLongest(1'000'000);
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    bool done = false;
    BP_SDK_RETURN_IF_ERROR(query(done));
    if (done) return {};
    const nanoseconds waited = std::chrono::steady_clock::now() - begin;
    if (static_cast<std::uint64_t>(waited.count()) >= timeout_ns)
      return {BP_TIMEOUT, "the device's work is not done"};
    if (waited < kLook)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::min(waited / 20, kLongest));
  }
}

}  // namespace backplane::cuda
