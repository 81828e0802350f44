#include "faults.h"

#include <cstring>

namespace backplane::opencl {

Result<std::unique_ptr<Fault>> Fault::make(cl_context context, bool on_host) {
  std::unique_ptr<Fault> fault(new Fault);
  fault->on_host_ = on_host;
  cl_int code = CL_SUCCESS;
  cl_mem memory =
      clCreateBuffer(context, CL_MEM_READ_WRITE | (on_host ? CL_MEM_USE_HOST_PTR : cl_mem_flags{0}),
                     kBytes, on_host ? fault->word_ : nullptr, &code);
  BP_CL_RETURN_IF_ERROR("clCreateBuffer", code);
  fault->memory_ = std::make_unique<Memory>(memory, kBytes);
  return fault;
}

Result<std::shared_ptr<Fault>> FaultPool::take() {
  std::unique_ptr<Fault> fault;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      fault = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (fault == nullptr) {
    auto made = Fault::make(context_, on_host_);
    if (!made.ok()) return made.status();
    fault = std::move(*made);
  }
  *fault->word() = 0;
  return std::shared_ptr<Fault>(fault.release(), [pool = shared_from_this()](Fault* used) {
    std::unique_ptr<Fault> back(used);
    const std::lock_guard lock(pool->mutex_);
    pool->free_.push_back(std::move(back));
  });
}

Status FaultPool::outcome(Fault& fault) {
  std::uint32_t number = 0;  // written by the device: read once
  std::memcpy(&number, fault.word(), sizeof number);
  return labels_.outcome(number);
}

}  // namespace backplane::opencl
