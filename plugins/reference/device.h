// The reference device: memory of its own, streams, a link of a set latency and bandwidth.
#pragma once

#include <backplane/sdk/queue.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "program.h"

namespace backplane::reference {

// Read from the environment once, when the plugin is negotiated.
struct Settings {
  static Settings from_environment();
  std::uint32_t devices = 1;       // BACKPLANE_REFERENCE_DEVICES
  std::uint64_t latency_ns = 0;    // BACKPLANE_REFERENCE_LATENCY_NS, of a copy or a launch
  std::uint64_t compile_ns = 0;    // BACKPLANE_REFERENCE_COMPILE_NS, of a compile
  std::uint64_t lost_after = 0;    // BACKPLANE_REFERENCE_LOST_AFTER, launches; 0: never
  std::uint64_t fails_at = 0;      // BACKPLANE_REFERENCE_FAILS_AT, number of a launch; 0: never
  std::uint64_t hangs_at = 0;      // BACKPLANE_REFERENCE_HANGS_AT, number of a launch; 0: never
  double bytes_per_s = 0;          // BACKPLANE_REFERENCE_BANDWIDTH, of a copy; 0: unlimited
  std::uint64_t memory_bytes = 0;  // BACKPLANE_REFERENCE_MEMORY; 0: unlimited
};

// Live and peak bytes; shared with the buffers, which may outlive a closed device.
struct Usage {
  std::atomic<std::uint64_t> live{0}, peak{0};
};

// The required part: every call completes before it returns.
class MinimalDevice : public sdk::Device {
 public:
  MinimalDevice(const Settings& settings, std::uint32_t index)
      : settings_(settings), index_(index) {}
  static std::vector<std::unique_ptr<MinimalDevice>> enumerate();

  sdk::DeviceInfo info() const override;
  sdk::Result<sdk::Buffer> allocate(std::size_t bytes) override;
  sdk::Status copy(const sdk::Copy& copy, const sdk::Order& order) override;
  sdk::Claims claims(const sdk::GraphView& graph) override { return claim_graph(graph); }
  sdk::Result<std::unique_ptr<sdk::Executable>> compile(
      const sdk::Subgraph& graph, const sdk::CompileOptions& options) override;

 protected:
  void pass_link(std::uint64_t bytes) const;  // sleeps as long as the link takes

  Settings settings_;
  std::uint32_t index_;
  std::shared_ptr<Usage> usage_ = std::make_shared<Usage>();
};

class ReferenceDevice final : public MinimalDevice {
 public:
  using MinimalDevice::MinimalDevice;
  static std::vector<std::unique_ptr<ReferenceDevice>> enumerate();

  sdk::Status copy(const sdk::Copy& copy, const sdk::Order& order) override;
  sdk::Result<std::unique_ptr<sdk::Executable>> compile(
      const sdk::Subgraph& graph, const sdk::CompileOptions& options) override;
  sdk::Status counters(bp_device_counters& out) override;
  sdk::Result<std::unique_ptr<sdk::Stream>> create_stream() override;
  sdk::Result<std::unique_ptr<sdk::Event>> create_event() override;
  sdk::Result<std::uint64_t> layout_bytes(const sdk::TensorDesc& desc) override;
  sdk::Status layout_convert(const sdk::LayoutConversion& conversion,
                             const sdk::Order& order) override;
  std::uint32_t check_blob(std::string_view requirement) override;
  sdk::Result<std::unique_ptr<sdk::Executable>> load(std::span<const std::byte> blob) override;

 private:
  sdk::Worker::Work pass_launch() {
    return [this]() -> sdk::Status {
      pass_link(0);
      const std::uint64_t launch = ++launches_;
      if (launch == settings_.fails_at) return {BP_INTERNAL, "a simulated parity error"};
      while (launch == settings_.hangs_at) std::this_thread::sleep_for(std::chrono::seconds(1));
      if (settings_.lost_after != 0 && launch > settings_.lost_after) is_lost_ = true;
      return check_lost();
    };
  }
  sdk::Status check_lost() const {
    if (!is_lost_) return {};
    return {BP_DEVICE_LOST, "the simulated link broke"};
  }
  std::atomic<std::uint64_t> launches_{0};
  std::atomic<bool> is_lost_{false};
  sdk::Queues queues_;
};

}  // namespace backplane::reference
