#include "device.h"

#include <backplane/kernels/program.hpp>

#include <algorithm>
#include <limits>

#include "recorder.h"
#include "streams.h"

namespace backplane::cuda {
namespace {

// A program whose kernels are queued: execute returns before they have run.
class CudaExecutable final : public kernels::GeneratedProgram {
 public:
  CudaExecutable(const std::shared_ptr<Context>& context, const sdk::Subgraph& graph,
                 const sdk::CompileOptions& options)
      : GeneratedProgram(context, graph, options), context_(context) {}

  Status execute(const sdk::Execution& call) override {
    BP_SDK_RETURN_IF_ERROR(context_->check());
    BP_SDK_RETURN_IF_ERROR(prepare(call));  // before anything waits
    const sdk::Order order = call.order();
    Recorder recorder(*context_, order, call.call_id());
    Status status = recorder.wait_for(order);
    if (status.ok()) status = run(call, &recorder);
    return recorder.finish(order, std::move(status));
  }

 private:
  std::shared_ptr<Context> context_;
};

}  // namespace

std::vector<std::unique_ptr<CudaDevice>> CudaDevice::enumerate() {
  std::vector<std::unique_ptr<CudaDevice>> devices;
  for (DeviceFacts& facts : find_devices())
    devices.push_back(std::make_unique<CudaDevice>(std::move(facts)));
  return devices;
}

sdk::DeviceInfo CudaDevice::info() const {
  const DeviceFacts& f = context_->device();
  sdk::DeviceInfo info;
  info.name = f.name;
  info.kind = BP_DEVICE_GPU;
  info.architecture = f.architecture();
  info.driver = "CUDA " + std::to_string(driver().version / 1000) + "." +
                std::to_string(driver().version % 1000 / 10);
  info.unique_id = "cuda:" + f.uuid;
  info.torch_device = "cuda:" + std::to_string(f.index);
  info.memory_bytes = f.memory_bytes;
  info.buffer_limit_bytes = f.memory_bytes;
  info.alignment_bytes = 256;
  constexpr double kLanes = 128, kUsualBandwidth = 500e9;
  info.memory_bytes_per_s = f.memory_bytes_per_s > 0 ? f.memory_bytes_per_s : kUsualBandwidth;
  // What is known of the bus: PCI Express, third generation or later.
  info.to_device_bytes_per_s = info.from_device_bytes_per_s = 12e9;
  info.copy_latency_ns = 10000;
  info.launch_latency_ns = 2500;
  const double scalar = f.multiprocessors * f.clock_hz * kLanes * 2;
  info.rates = {{sdk::kFloat32, scalar}, {sdk::kFloat64, scalar / 2}};
  return info;
}

Result<sdk::Buffer> CudaDevice::allocate(std::size_t bytes) {
  BP_SDK_RETURN_IF_ERROR(context_->check());
  auto memory = Pool::share(context_->shared_pool(), std::max<std::size_t>(bytes, 1));
  if (!memory.ok()) return memory.status();
  std::byte* const address = (*memory)->address();
  return sdk::Buffer(address, bytes, [owner = std::move(*memory)](void*) {});
}

Status CudaDevice::copy(const sdk::Copy& copy, const sdk::Order& order) {
  static const auto upload = std::make_shared<const Work>(Work{"copy to the device", {}}),
                    download = std::make_shared<const Work>(Work{"copy to the host", {}}),
                    move = std::make_shared<const Work>(Work{"copy on the device", {}});
  BP_SDK_RETURN_IF_ERROR(context_->check());
  const bool from_device = copy.source.buffer() != nullptr,
             to_device = copy.target.buffer() != nullptr;
  Recorder recorder(*context_, order);
  Status status = recorder.wait_for(order);
  if (status.ok())
    status = recorder.copy(copy, from_device && to_device ? move : to_device ? upload : download);
  return recorder.finish(order, std::move(status), !(from_device && to_device));
}

sdk::Claims CudaDevice::claims(const sdk::GraphView& graph) {
  return kernels::claims(context_->facts(), graph);
}

Result<std::unique_ptr<sdk::Executable>> CudaDevice::compile(const sdk::Subgraph& graph,
                                                             const sdk::CompileOptions& options) {
  BP_SDK_RETURN_IF_ERROR(context_->open());
  BP_SDK_RETURN_IF_ERROR(context_->check());
  BP_SDK_RETURN_IF_ERROR(kernels::GeneratedProgram::check(context_->facts(), graph, options));
  return std::unique_ptr<sdk::Executable>(
      std::make_unique<CudaExecutable>(context_, graph, options));
}

Status CudaDevice::counters(bp_device_counters& out) {
  if (!context_->is_open()) return {};
  if (!context_->check().ok()) out.health = BP_HEALTH_LOST;
  out.live_bytes = context_->pool().live_bytes();
  out.peak_bytes = context_->pool().peak_bytes();
  return {};
}

Result<std::unique_ptr<sdk::Stream>> CudaDevice::create_stream() {
  const Current current(context_->get());
  StreamHandle stream = nullptr;
  BP_CUDA_RETURN_IF_ERROR(cuStreamCreate, &stream, kNonBlockingStream);
  return std::unique_ptr<sdk::Stream>(
      std::make_unique<CudaStream>(context_, stream, /*is_owned=*/true));
}

Result<std::unique_ptr<sdk::Event>> CudaDevice::create_event() {
  const Current current(context_->get());
  EventHandle event = nullptr;
  BP_CUDA_RETURN_IF_ERROR(cuEventCreate, &event, kEventWithoutTiming);
  return std::unique_ptr<sdk::Event>(std::make_unique<CudaEvent>(context_, event));
}

// The context is the one that PyTorch uses: its addresses and streams mean the same here.
Result<sdk::Buffer> CudaDevice::import_memory() {
  BP_SDK_RETURN_IF_ERROR(context_->check());
  return sdk::Buffer(nullptr, std::numeric_limits<std::size_t>::max(), [](void*) {});
}
Result<std::unique_ptr<sdk::Stream>> CudaDevice::import_stream(std::uint64_t handle) {
  return std::unique_ptr<sdk::Stream>(std::make_unique<CudaStream>(
      context_, reinterpret_cast<StreamHandle>(handle), /*is_owned=*/false));
}

Status CudaDevice::begin_profile() {
  const Current current(context_->get());
  return context_->profile().begin(context_->stream());
}
Status CudaDevice::end_profile(bp_profile_sink* sink) {
  const Current current(context_->get());
  return context_->profile().end(context_->device().index, sink);
}

}  // namespace backplane::cuda
