// One OpenCL device: context, memory, programs.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "faults.h"
#include "memory.h"

namespace backplane::opencl {

// What is known of a device without a context.
struct DeviceFacts {
  cl_platform_id platform = nullptr;
  cl_device_id device = nullptr;
  std::string name, vendor, version, driver, platform_name;
  bool is_cpu = false;
  bool has_fp64 = false, has_fp16 = false;
  std::uint64_t memory_bytes = 0, buffer_limit_bytes = 0, local_bytes = 0;
  std::uint32_t compute_units = 1, clock_mhz = 1000;
  std::size_t group_limit = 1;
  std::uint32_t index = 0;
  // Kernels read and write host memory where it lies: CPUs, unless BACKPLANE_OPENCL_ZERO_COPY=0.
  bool binds_host_memory = false;
  // Kernels for many small work-items; BACKPLANE_OPENCL_SCHEDULE=gpu or cpu says otherwise (tests).
  bool gpu_schedule = false;
};
// All devices of all platforms, less those that BACKPLANE_OPENCL_DEVICE (an index, or a part of a
// name) leaves out. Throws std::runtime_error that says what is missing.
std::vector<DeviceFacts> find_devices();

// ---- Programs -----------------------------------------------------------------------------------

// One kernel; built together with others, because the compiler's start costs more than a kernel.
// Kernel objects carry their arguments, so every launch in preparation has its own.
class Program {
 public:
  Program(std::string text, std::string entry, std::string label)
      : text_(std::move(text)), entry_(std::move(entry)), label_(std::move(label)) {}
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  const std::string& text() const { return text_; }
  const std::string& label() const { return label_; }
  // Waits while another thread builds it.
  Result<cl_kernel> take() const;
  void give(cl_kernel kernel) const;
  void finish(cl_program program, const Status& status);  // retains the program

 private:
  std::string text_, entry_, label_;
  mutable std::mutex mutex_;
  mutable std::condition_variable built_;
  cl_program program_ = nullptr;
  std::string failure_;
  mutable std::vector<cl_kernel> free_;
};

class Context {
 public:
  explicit Context(DeviceFacts facts) : facts_(std::move(facts)) {}
  ~Context();
  Status open();
  bool is_open() const { return context_ != nullptr; }

  const DeviceFacts& facts() const { return facts_; }
  cl_context get() const { return context_; }
  cl_command_queue queue() const { return queue_; }
  Pool& pool() { return *pool_; }
  const std::shared_ptr<Pool>& shared_pool() const { return pool_; }
  FaultPool& faults() { return *faults_; }
  const std::shared_ptr<FaultPool>& shared_faults() const { return faults_; }
  Result<cl_command_queue> create_queue() const;
  // Known already, or to be built by the next build_pending. `label` names the nodes in messages.
  std::shared_ptr<const Program> program(const std::string& text, const std::string& entry,
                                         const std::string& label);
  // Builds what was asked for since the last time, or finds it in the host's cache.
  Status build_pending();
  // Host memory as a buffer, without a copy. It may be given up as soon as its last use is queued.
  Result<std::unique_ptr<Memory>> wrap_host(void* data, std::uint64_t bytes) const;
  // A buffer with this content; the copy is done when it returns.
  Result<std::shared_ptr<Memory>> constant(const void* data, std::uint64_t bytes);

 private:
  Result<cl_program> find_or_build(std::span<const std::shared_ptr<Program>> kernels);
  Result<cl_program> build(const std::string& source, const std::string& label);
  Result<cl_program> load_binary(const std::string& key);
  void save_binary(const std::string& key, cl_program program);
  std::string cache_key(const std::string& source) const;

  DeviceFacts facts_;
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr;
  std::shared_ptr<Pool> pool_;
  std::shared_ptr<FaultPool> faults_;
  std::mutex open_mutex_, program_mutex_;
  std::unordered_map<std::string, std::shared_ptr<Program>> programs_;  // by text
  std::vector<std::shared_ptr<Program>> pending_;
};

}  // namespace backplane::opencl
