// Device memory that is counted, up to a limit, for drivers that do not.
#pragma once

#include <backplane/sdk/device.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace backplane::sdk {

class CountedMemory {
 public:
  using Make = std::function<Result<Buffer>(std::size_t bytes)>;

  // `make` allocates; left out, memory of the host's.
  explicit CountedMemory(std::size_t limit_bytes, Make make = {})
      : limit_(limit_bytes), make_(std::move(make)) {
    if (!make_) make_ = [](std::size_t bytes) { return host_buffer(bytes); };
  }

  // Device::allocate. Buffers may outlive this.
  Result<Buffer> allocate(std::size_t bytes) const {
    const std::size_t before = counts_->live.fetch_add(bytes);
    const std::shared_ptr<void> room(
        nullptr, [counts = counts_, bytes](void*) { counts->live.fetch_sub(bytes); });
    if (bytes > limit_ || before > limit_ - bytes)
      return Status(BP_OUT_OF_MEMORY, "out of device memory: " + std::to_string(bytes) +
                                          " bytes wanted, " + std::to_string(before) + " of " +
                                          std::to_string(limit_) + " in use");
    auto made = make_(bytes);
    if (!made.ok()) return made.status();
    std::size_t peak = counts_->peak.load();
    while (peak < before + bytes && !counts_->peak.compare_exchange_weak(peak, before + bytes)) {
    }
    auto memory = std::make_shared<Buffer>(std::move(*made));
    void* const data = memory->data();
    return Buffer(data, bytes, [memory = std::move(memory), room](void*) {});
  }

  std::size_t live_bytes() const { return counts_->live.load(); }
  std::size_t peak_bytes() const { return counts_->peak.load(); }

 private:
  struct Counts {
    std::atomic<std::size_t> live{0}, peak{0};
  };
  std::size_t limit_;
  Make make_;
  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

}  // namespace backplane::sdk
