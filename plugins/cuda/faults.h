// What kernels find wrong while they run: an index out of range. Each call that may find something
// has a word of the host's memory, which kernels write where it lies and the host reads when the
// call's work is done.
#pragma once

#include <backplane/kernels/build.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "memory.h"

namespace backplane::cuda {

class FaultPool : public std::enable_shared_from_this<FaultPool> {
 public:
  explicit FaultPool(ContextHandle context) : context_(context) {}
  ~FaultPool();

  // Zero; goes back with its last owner.
  Result<std::shared_ptr<std::uint32_t>> take();
  kernels::FaultLabels& labels() { return labels_; }
  // What was written; ok where nothing was.
  Status outcome(const std::uint32_t& word);

 private:
  ContextHandle context_;
  std::mutex mutex_;
  std::vector<std::uint32_t*> free_, pages_;
  kernels::FaultLabels labels_;
};

}  // namespace backplane::cuda
