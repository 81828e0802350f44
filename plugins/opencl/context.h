// One OpenCL device: context, memory, programs.
#pragma once

#include <backplane/kernels/build.hpp>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "builders.h"
#include "facts.h"
#include "faults.h"
#include "memory.h"
#include "profile.h"

namespace backplane::opencl {

// ---- Programs -----------------------------------------------------------------------------------

struct ReleaseProgram {
  void operator()(cl_program program) const { clReleaseProgram(program); }
};
using OwnedProgram = std::unique_ptr<std::remove_pointer_t<cl_program>, ReleaseProgram>;

// One kernel; built together with others, because the compiler's start costs more than a kernel.
// Kernel objects carry their arguments, so every launch in preparation has its own.
class ClProgram final : public kernels::Program {
 public:
  ClProgram(std::string text, std::string entry, std::string label)
      : text_(std::move(text)), entry_(std::move(entry)), label_(std::move(label)) {}
  ~ClProgram() override;
  ClProgram(const ClProgram&) = delete;
  ClProgram& operator=(const ClProgram&) = delete;
  const std::string& text() const { return text_; }
  const std::string& entry() const { return entry_; }
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

using Kernels = std::vector<std::shared_ptr<ClProgram>>;

class Context final : public kernels::Target {
 public:
  explicit Context(DeviceFacts facts)
      : Target(facts.kernels), device_(std::move(facts)), builders_(device_.index) {}
  ~Context() override;
  Status open();
  bool is_open() const { return queue_ != nullptr; }

  const DeviceFacts& device() const { return device_; }
  cl_context get() const { return context_; }
  cl_command_queue queue() const { return is_profiling() ? profiled_queue_ : queue_; }
  Pool& pool() { return *pool_; }
  const std::shared_ptr<Pool>& shared_pool() const { return pool_; }
  FaultPool& faults() { return *faults_; }
  // Given back with release_queue; its work goes on then.
  Result<cl_command_queue> create_queue(bool profiled = false);
  void release_queue(cl_command_queue queue);

  // Ok, or what the device was lost with.
  Status check() const;
  // What a failed call means. A device that answers nothing any more is lost from then on; nothing
  // that was queued before runs on in memory of the host when this returns.
  Status failure(const char* call, cl_int code);
  // Makes a call on `queue`. Where it finds no memory, kept buffers are given up and it is made
  // once more.
  template <class Call>
  cl_int retried(cl_command_queue queue, Call&& call) {
    const cl_int code = call();
    if (!is_out_of_memory(code)) return code;
    clFinish(queue);
    pool_->trim();
    return call();
  }

  // As clWaitForEvents() with one. For CPU devices it looks a while before it sleeps, longer where
  // the driver's threads leave a core to it: to wake a thread takes longer than many kernels run.
  cl_int wait(cl_event event) const;

  bool is_profiling() const { return profile_.is_active(); }
  Profile& profile() { return profile_; }
  Status begin_profile();
  Status end_profile(bp_profile_sink* sink);

  std::shared_ptr<const kernels::Program> program(const std::string& text, const std::string& entry,
                                                  const std::string& label) override;
  // Builds what was asked for since the last time, or finds it in the host's cache.
  Status build_pending() override;
  // Host memory as a buffer, without a copy. It may be given up as soon as its last use is queued.
  Result<std::unique_ptr<Memory>> wrap_host(void* data, std::uint64_t bytes);
  // The copy is done when it returns.
  Result<std::shared_ptr<std::byte>> constant(const void* data, std::uint64_t bytes) override;
  std::uint32_t fault_number(const std::string& label) override {
    return faults_->labels().number_of(label);
  }

 private:
  bool answers() const;
  void finish_queues();
  void build_ahead(std::span<const Kernels> parts);
  Result<OwnedProgram> find_or_build(std::span<const std::shared_ptr<ClProgram>> kernels);
  Result<OwnedProgram> build(const std::string& source, const std::string& label);
  OwnedProgram load_binary(const std::string& key,
                           std::span<const std::shared_ptr<ClProgram>> kernels);
  void save_binary(const std::string& key, cl_program program);
  std::string cache_key(const std::string& prefix, const std::string& source) const;

  DeviceFacts device_;
  Builders builders_;
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr, profiled_queue_ = nullptr;
  std::mutex queue_mutex_;
  std::vector<cl_command_queue> queues_;  // all that were created
  std::shared_ptr<Pool> pool_;
  std::shared_ptr<FaultPool> faults_;
  Profile profile_;
  std::mutex open_mutex_;
  std::atomic<bool> lost_{false};
  std::string lost_with_;  // written before lost_
  kernels::ProgramTable<ClProgram> programs_;
};

}  // namespace backplane::opencl
