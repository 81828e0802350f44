// What kernels find wrong while they run: an index out of range. Each call that may find something
// has a word of memory, which is read when its work is done.
#pragma once

#include <backplane/kernels/build.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "memory.h"

namespace backplane::opencl {

class Fault {
 public:
  static constexpr std::uint64_t kBytes = 64;

  // Lies in the word itself where the device binds host memory.
  static Result<std::unique_ptr<Fault>> make(cl_context context, bool on_host);

  bool on_host() const { return on_host_; }
  const Memory& memory() const { return *memory_; }
  std::uint32_t* word() { return word_; }

 private:
  Fault() = default;
  bool on_host_ = false;
  alignas(kBytes) std::uint32_t word_[kBytes / sizeof(std::uint32_t)]{};
  std::unique_ptr<Memory> memory_;
};

class FaultPool : public std::enable_shared_from_this<FaultPool> {
 public:
  FaultPool(cl_context context, bool on_host) : context_(context), on_host_(on_host) {}

  // Says nothing yet; goes back to the pool with its last owner.
  Result<std::shared_ptr<Fault>> take();
  kernels::FaultLabels& labels() { return labels_; }
  // What was written; ok where nothing was.
  Status outcome(Fault& fault);

 private:
  cl_context context_;
  bool on_host_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Fault>> free_;
  kernels::FaultLabels labels_;
};

}  // namespace backplane::opencl
