// One CUDA device: its primary context, which it shares with everything else in the process, memory
// and programs.
#pragma once

#include <backplane/kernels/build.hpp>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "facts.h"
#include "faults.h"
#include "memory.h"
#include "products.h"
#include "profile.h"

namespace backplane::cuda {

// A module of the driver, loaded.
class Module {
 public:
  Module(ContextHandle context, ModuleHandle module) : context_(context), module_(module) {}
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ModuleHandle get() const { return module_; }

 private:
  ContextHandle context_;
  ModuleHandle module_;
};

// One kernel; built together with others, because a compiler's start costs more than a kernel.
class CudaProgram final : public kernels::Program {
 public:
  CudaProgram(std::string text, std::string entry, std::string label)
      : text_(std::move(text)), entry_(std::move(entry)), label_(std::move(label)) {}
  const std::string& text() const { return text_; }
  const std::string& entry() const { return entry_; }
  const std::string& label() const { return label_; }
  // Waits while another thread builds it.
  Result<FunctionHandle> function() const;
  Status finish(std::shared_ptr<const Module> module, Status status);

 private:
  std::string text_, entry_, label_;
  mutable std::mutex mutex_;
  mutable std::condition_variable built_;
  std::shared_ptr<const Module> module_;
  std::atomic<FunctionHandle> function_{nullptr};
  std::string failure_;
};

using Kernels = std::vector<std::shared_ptr<CudaProgram>>;

class Context final : public kernels::Target {
 public:
  explicit Context(DeviceFacts facts) : Target(facts.kernels), device_(std::move(facts)) {}
  ~Context() override;
  Status open();
  bool is_open() const { return stream_ != nullptr; }

  const DeviceFacts& device() const { return device_; }
  ContextHandle get() const { return context_; }
  StreamHandle stream() const { return stream_; }  // of calls that name none
  Pool& pool() { return *pool_; }
  const std::shared_ptr<Pool>& shared_pool() const { return pool_; }
  FaultPool& faults() { return *faults_; }
  Profile& profile() { return profile_; }

  // Ok, or what the device was lost with.
  Status check() const;
  // What a failed call means; the device is lost from then on where its context is.
  Status failure(const char* call, Code code);
  // Makes a call. Where it finds no memory, kept buffers are let go and it is made once more.
  template <class Call>
  Code retried(Call&& call) {
    const Code code = call();
    if (code != kOutOfMemory) return code;
    pool_->trim();
    return call();
  }

  std::shared_ptr<const kernels::Program> program(const std::string& text, const std::string& entry,
                                                  const std::string& label) override {
    return programs_.find(text, entry, label);
  }
  // Builds what was asked for since the last time, or finds it in the host's cache.
  Status build_pending() override;
  // The copy is done when it returns.
  Result<std::shared_ptr<std::byte>> constant(const void* data, std::uint64_t bytes) override;
  std::shared_ptr<const kernels::LibraryProduct> library_product(
      const kernels::ProductShape& shape) override;
  std::uint32_t fault_number(const std::string& label) override {
    return faults_->labels().number_of(label);
  }

 private:
  Result<std::shared_ptr<const Module>> find_or_build(
      std::span<const std::shared_ptr<CudaProgram>> kernels);
  Result<std::shared_ptr<const Module>> load(const std::string& binary);

  DeviceFacts device_;
  ContextHandle context_ = nullptr;
  StreamHandle stream_ = nullptr;
  std::shared_ptr<Pool> pool_;
  std::shared_ptr<FaultPool> faults_;
  Profile profile_;
  mutable std::mutex open_mutex_;
  std::atomic<bool> lost_{false};
  std::string lost_with_;  // written before lost_
  kernels::ProgramTable<CudaProgram> programs_;
  std::shared_ptr<const BlasLibrary> blas_;  // null: none
};

}  // namespace backplane::cuda
