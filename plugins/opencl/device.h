// The OpenCL device as the SDK sees it.
#pragma once

#include <backplane/sdk/program.hpp>

#include <memory>
#include <vector>

#include "context.h"

namespace backplane::opencl {

class ClDevice final : public sdk::Device {
 public:
  explicit ClDevice(DeviceFacts facts) : context_(std::make_shared<Context>(std::move(facts))) {}
  static std::vector<std::unique_ptr<ClDevice>> enumerate();

  sdk::DeviceInfo info() const override;
  Status open() override { return context_->open(); }
  Result<sdk::Buffer> allocate(std::size_t bytes) override;
  Status copy(const sdk::Copy& copy, const sdk::Order& order) override;
  sdk::Claims claims(const sdk::GraphView& graph) override;
  Result<std::unique_ptr<sdk::Executable>> compile(const sdk::Subgraph& graph,
                                                   const sdk::CompileOptions& options) override;
  Result<std::uint64_t> layout_bytes(const sdk::TensorDesc& desc) override;
  Status layout_convert(const sdk::LayoutConversion& conversion, const sdk::Order& order) override;
  Status counters(bp_device_counters& out) override;
  Result<std::unique_ptr<sdk::Stream>> create_stream() override;
  Result<std::unique_ptr<sdk::Event>> create_event() override;
  Status begin_profile() override;
  Status end_profile(bp_profile_sink* sink) override;

 private:
  std::shared_ptr<Context> context_;
};

}  // namespace backplane::opencl
