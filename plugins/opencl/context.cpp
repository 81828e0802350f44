#include "context.h"

#include <backplane/sdk/signal_guard.hpp>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace backplane::opencl {

bool is_out_of_memory(cl_int code) {
  return code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_RESOURCES ||
         code == CL_OUT_OF_HOST_MEMORY;
}

Status driver_error(const char* call, cl_int code) {
  bp_code meaning = BP_INTERNAL;
  const char* hint = "";
  if (is_out_of_memory(code)) {
    meaning = BP_OUT_OF_MEMORY;
    hint = ": the device is out of memory or resources";
  } else if (code == CL_INVALID_BUFFER_SIZE) {
    meaning = BP_OUT_OF_MEMORY;
    hint = ": larger than the device's largest buffer";
  } else if (code == CL_DEVICE_NOT_AVAILABLE) {
    meaning = BP_DEVICE_LOST;
    hint = ": the device is gone";
  }
  return {meaning, std::string(call) + " failed with OpenCL error " + std::to_string(code) + hint};
}

Context::~Context() {
  programs_.clear();
  faults_.reset();
  pool_.reset();
  for (cl_command_queue queue : {queue_, profiled_queue_})
    if (queue != nullptr) clReleaseCommandQueue(queue);
  if (context_ != nullptr) clReleaseContext(context_);
}

Status Context::open() {
  const std::lock_guard lock(open_mutex_);
  if (is_open()) return {};
  const sdk::SignalGuard signals;
  const cl_context_properties properties[] = {
      CL_CONTEXT_PLATFORM, reinterpret_cast<cl_context_properties>(device_.platform), 0};
  cl_int code = CL_SUCCESS;
  if (context_ == nullptr)
    context_ = clCreateContext(properties, 1, &device_.device, nullptr, nullptr, &code);
  BP_CL_RETURN_IF_ERROR("clCreateContext", code);
  auto queue = create_queue();
  if (!queue.ok()) return queue.status();
  pool_ = std::make_shared<Pool>(context_, device_.memory_bytes);
  faults_ = std::make_shared<FaultPool>(context_, device_.binds_host_memory);
  queue_ = *queue;
  return {};
}

Result<cl_command_queue> Context::create_queue(bool profiled) {
  cl_int code = CL_SUCCESS;
  cl_command_queue queue = clCreateCommandQueue(
      context_, device_.device,
      profiled ? CL_QUEUE_PROFILING_ENABLE : cl_command_queue_properties{0}, &code);
  if (code != CL_SUCCESS) return driver_error("clCreateCommandQueue", code);
  const std::lock_guard lock(queue_mutex_);
  queues_.push_back(queue);
  return queue;
}

void Context::release_queue(cl_command_queue queue) {
  {
    const std::lock_guard lock(queue_mutex_);
    std::erase(queues_, queue);
  }
  clReleaseCommandQueue(queue);
}

void Context::finish_queues() {
  std::vector<cl_command_queue> queues;
  {
    const std::lock_guard lock(queue_mutex_);
    queues = queues_;
    for (cl_command_queue queue : queues) clRetainCommandQueue(queue);
  }
  for (cl_command_queue queue : queues) {
    clFinish(queue);  // fails at once where the device is gone
    clReleaseCommandQueue(queue);
  }
}

Status Context::check() const {
  if (!lost_.load(std::memory_order_acquire)) [[likely]]
    return {};
  return {BP_DEVICE_LOST, "the device " + device_.name + " was lost (" + lost_with_ +
                              "); start the program anew to use it"};
}

bool Context::answers() const {
  cl_event event = nullptr;
  if (clEnqueueMarkerWithWaitList(queue_, 0, nullptr, &event) != CL_SUCCESS) return false;
  clReleaseEvent(event);
  return clFinish(queue_) == CL_SUCCESS;
}

Status Context::failure(const char* call, cl_int code) {
  Status status = driver_error(call, code);
  // Drivers report a fault of a kernel, after which nothing works, as a lack of resources.
  if (code != CL_DEVICE_NOT_AVAILABLE && answers()) return status;
  {
    const std::lock_guard lock(open_mutex_);
    if (!lost_.load(std::memory_order_relaxed)) {
      lost_with_ = status.message();
      lost_.store(true, std::memory_order_release);
    }
  }
  finish_queues();
  return check();
}

cl_int Context::wait(cl_event event) const {
  using std::chrono::microseconds;
  const microseconds look(!device_.is_cpu ? 0 : device_.spares_a_core ? 1000 : 100);
  const auto until = std::chrono::steady_clock::now() + look;
  cl_int state = CL_QUEUED;
  while (std::chrono::steady_clock::now() < until) {
    clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, nullptr);
    if (state <= CL_COMPLETE) break;
    std::this_thread::yield();  // the kernel's threads may wait for this core
  }
  return clWaitForEvents(1, &event);
}

Status Context::begin_profile() {
  {
    const std::lock_guard lock(open_mutex_);
    if (profiled_queue_ == nullptr) {
      auto queue = create_queue(true);
      if (!queue.ok()) return queue.status();
      profiled_queue_ = *queue;
    }
  }
  return profile_.begin(profiled_queue_);
}
Status Context::end_profile(bp_profile_sink* sink) {
  if (!is_profiling()) return {BP_INVALID_ARGUMENT, "no profile was begun"};
  return profile_.end(profiled_queue_, device_.index, sink);
}

Result<std::unique_ptr<Memory>> Context::wrap_host(void* data, std::uint64_t bytes) {
  cl_mem memory = nullptr;
  const cl_int code = retried(queue(), [&] {
    cl_int made = CL_SUCCESS;
    memory = clCreateBuffer(context_, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, data, &made);
    return made;
  });
  if (code != CL_SUCCESS) return failure("clCreateBuffer over host memory", code);
  return std::make_unique<Memory>(memory, bytes);
}

Result<std::shared_ptr<std::byte>> Context::constant(const void* data, std::uint64_t bytes) {
  auto memory = Pool::share(pool_, std::max<std::uint64_t>(bytes, 1));
  if (!memory.ok()) return memory.status();
  // A constant without elements: OpenCL refuses to write nothing.
  const cl_int code = bytes == 0 ? CL_SUCCESS : retried(queue(), [&] {
    return clEnqueueWriteBuffer(queue(), (*memory)->get(), CL_TRUE, 0, bytes, data, 0, nullptr,
                                nullptr);
  });
  if (code != CL_SUCCESS) return failure("clEnqueueWriteBuffer", code);
  return std::shared_ptr<std::byte>(*memory, (*memory)->address());
}

}  // namespace backplane::opencl
