#include "faults.h"

#include <atomic>

namespace backplane::cuda {
namespace {

constexpr std::size_t kPageBytes = 4096, kApart = 64;  // words of two calls share no cache line

}  // namespace

FaultPool::~FaultPool() {
  const Current current(context_);
  for (std::uint32_t* page : pages_) driver().cuMemFreeHost(page);
}

Result<std::shared_ptr<std::uint32_t>> FaultPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    const Current current(context_);
    void* page = nullptr;
    BP_CUDA_RETURN_IF_ERROR(cuMemHostAlloc, &page, kPageBytes, kPortableMappedHost);
    pages_.push_back(static_cast<std::uint32_t*>(page));
    for (std::size_t at = 0; at < kPageBytes; at += kApart)
      free_.push_back(pages_.back() + at / sizeof(std::uint32_t));
  }
  std::uint32_t* word = free_.back();
  free_.pop_back();
  *word = 0;
  return std::shared_ptr<std::uint32_t>(word, [pool = shared_from_this()](std::uint32_t* used) {
    const std::lock_guard back(pool->mutex_);
    pool->free_.push_back(used);
  });
}

Status FaultPool::outcome(const std::uint32_t& word) {
  // Written by the device: read once.
  return labels_.outcome(std::atomic_ref(const_cast<std::uint32_t&>(word)).load());
}

}  // namespace backplane::cuda
