#include "device.h"

#include <backplane/kernels/panels.hpp>
#include <backplane/kernels/program.hpp>
#include <backplane/sdk/host_bindings.hpp>

#include <algorithm>

#include "recorder.h"
#include "streams.h"

namespace backplane::opencl {
namespace {

// Hands `event` (owned) to the order's signal, or waits for it where the order has none and
// `blocking`.
Status complete(Context& context, const sdk::Order& order, cl_event event, bool blocking,
                std::shared_ptr<Fault> fault = nullptr) {
  auto* stream = static_cast<ClStream*>(order.stream());
  if (stream != nullptr && fault != nullptr) stream->add_fault(std::exchange(fault, nullptr));
  if (order.signal() != nullptr) {
    auto faults = stream ? stream->take_faults() : std::vector<std::shared_ptr<Fault>>{};
    if (fault != nullptr) faults.push_back(std::move(fault));
    static_cast<ClEvent*>(order.signal())->arm(event, std::move(faults));
    return {};
  }
  cl_int code = CL_SUCCESS, state = CL_COMPLETE;
  if (blocking) {
    code = context.wait(event);
    clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, nullptr);
  }
  clReleaseEvent(event);
  if (state < 0) return context.failure("the device's work", state);
  if (code != CL_SUCCESS) return context.failure("clWaitForEvents", code);
  return blocking && fault != nullptr ? context.faults().outcome(*fault) : Status();
}

cl_command_queue queue_of(const Context& context, const sdk::Order& order) {
  return order.stream() ? static_cast<ClStream*>(order.stream())->queue() : context.queue();
}

// A program whose kernels are queued: execute returns before they have run.
class ClExecutable final : public kernels::GeneratedProgram {
 public:
  ClExecutable(const std::shared_ptr<Context>& context, const sdk::Subgraph& graph,
               const sdk::CompileOptions& options)
      : GeneratedProgram(context, graph, options), context_(context) {}

  Status execute(const sdk::Execution& call) override {
    BP_SDK_RETURN_IF_ERROR(context_->check());
    BP_SDK_RETURN_IF_ERROR(prepare(call));  // before anything waits
    const sdk::Order order = call.order();
    // Work that was queued keeps the buffers.
    sdk::HostBindings<std::unique_ptr<Memory>> bound(call, inputs.size(), outputs.size());
    BP_SDK_RETURN_IF_ERROR(bound.wrap(
        [&](void* data, std::uint64_t bytes) { return context_->wrap_host(data, bytes); }));
    Recorder recorder(*context_, queue_of(*context_, order), waits_of(order), call.call_id());
    auto event = recorder.finish(run(sdk::Execution(bound.args()), &recorder));
    if (!event.ok()) return event.status();
    return complete(*context_, order, *event, order.stream() == nullptr, recorder.take_fault());
  }

 private:
  std::shared_ptr<Context> context_;
};

}  // namespace

std::vector<std::unique_ptr<ClDevice>> ClDevice::enumerate() {
  std::vector<std::unique_ptr<ClDevice>> devices;
  for (DeviceFacts& facts : find_devices())
    devices.push_back(std::make_unique<ClDevice>(std::move(facts)));
  return devices;
}

sdk::DeviceInfo ClDevice::info() const {
  const DeviceFacts& f = context_->device();
  sdk::DeviceInfo info;
  info.name = f.name;
  info.kind = f.is_cpu ? BP_DEVICE_CPU : BP_DEVICE_GPU;
  if (f.binds_host_memory) info.flags |= BP_DEVICE_BINDS_HOST_MEMORY;
  info.architecture = f.version;
  info.driver = f.vendor + " " + f.driver;
  info.unique_id = "opencl:" + std::to_string(f.index);
  info.memory_bytes = f.memory_bytes;
  info.buffer_limit_bytes = f.buffer_limit_bytes;
  info.alignment_bytes = 64;
  // OpenCL says neither rates nor bandwidths: those of a usual device of its kind.
  const double units = f.compute_units, clock = std::max<double>(f.clock_mhz, 1000) * 1e6;
  const double lanes = f.is_cpu ? 64 : 128;
  info.memory_bytes_per_s = f.is_cpu ? 40e9 : 500e9;
  info.to_device_bytes_per_s = info.from_device_bytes_per_s = f.is_cpu ? 20e9 : 10e9;
  info.copy_latency_ns = f.is_cpu ? 2000 : 15000;
  info.launch_latency_ns = f.is_cpu ? 1000 : 4000;
  info.rates = {{sdk::kFloat32, units * clock * lanes}, {sdk::kFloat64, units * clock * lanes / 2}};
  return info;
}

Result<sdk::Buffer> ClDevice::allocate(std::size_t bytes) {
  BP_SDK_RETURN_IF_ERROR(context_->check());
  auto memory = Pool::share(context_->shared_pool(), std::max<std::size_t>(bytes, 1));
  if (!memory.ok()) return memory.status();
  std::byte* const address = (*memory)->address();
  return sdk::Buffer(address, bytes, [owner = std::move(*memory)](void*) {});
}

Status ClDevice::copy(const sdk::Copy& copy, const sdk::Order& order) {
  static const auto upload = std::make_shared<const Work>(Work{"copy to the device", {}}),
                    download = std::make_shared<const Work>(Work{"copy to the host", {}}),
                    move = std::make_shared<const Work>(Work{"copy on the device", {}});
  BP_SDK_RETURN_IF_ERROR(context_->check());
  const std::size_t bytes = copy.bytes();
  cl_command_queue queue = queue_of(*context_, order);
  const std::vector<cl_event> waits = waits_of(order);
  const auto wait_count = static_cast<cl_uint>(waits.size());
  const cl_event* wait_list = waits.empty() ? nullptr : waits.data();
  const bool from_device = copy.source.buffer() != nullptr,
             to_device = copy.target.buffer() != nullptr;
  const Place source = from_device ? place_of(copy.source.data()) : Place{};
  const Place target = to_device ? place_of(copy.target.data()) : Place{};
  cl_event event = nullptr;
  const auto& work = from_device && to_device ? move : to_device ? upload : download;
  const cl_int code = context_->retried(queue, [&]() -> cl_int {
    if (bytes == 0) return clEnqueueMarkerWithWaitList(queue, wait_count, wait_list, &event);
    if (from_device && to_device)
      return clEnqueueCopyBuffer(queue, source.memory, target.memory, source.offset, target.offset,
                                 bytes, wait_count, wait_list, &event);
    if (to_device)
      return clEnqueueWriteBuffer(queue, target.memory, CL_FALSE, target.offset, bytes,
                                  copy.source.data(), wait_count, wait_list, &event);
    if (from_device)
      return clEnqueueReadBuffer(queue, source.memory, CL_FALSE, source.offset, bytes,
                                 copy.target.data(), wait_count, wait_list, &event);
    return CL_INVALID_VALUE;
  });
  for (cl_event waited : waits) clReleaseEvent(waited);
  if (code != CL_SUCCESS) return context_->failure(work->name.c_str(), code);
  if (bytes != 0 && context_->is_profiling()) context_->profile().add(queue, event, work, 0);
  if (const cl_int flushed = clFlush(queue); flushed != CL_SUCCESS) {
    clReleaseEvent(event);
    return context_->failure("clFlush", flushed);
  }
  return complete(*context_, order, event, true);
}

sdk::Claims ClDevice::claims(const sdk::GraphView& graph) {
  return kernels::claims(context_->facts(), graph);
}

Result<std::unique_ptr<sdk::Executable>> ClDevice::compile(const sdk::Subgraph& graph,
                                                           const sdk::CompileOptions& options) {
  BP_SDK_RETURN_IF_ERROR(context_->open());
  BP_SDK_RETURN_IF_ERROR(context_->check());
  BP_SDK_RETURN_IF_ERROR(kernels::GeneratedProgram::check(context_->facts(), graph, options));
  return std::unique_ptr<sdk::Executable>(std::make_unique<ClExecutable>(context_, graph, options));
}

Result<std::uint64_t> ClDevice::layout_bytes(const sdk::TensorDesc& desc) {
  auto layout = kernels::panel_layout(desc);
  if (!layout.ok()) return layout.status();
  return layout->bytes(desc.dims);
}

Status ClDevice::layout_convert(const sdk::LayoutConversion& conversion, const sdk::Order& order) {
  const bool packs = !conversion.unpacks();
  auto layout = kernels::panel_layout(conversion.packed());
  if (!layout.ok()) return layout.status();
  BP_SDK_RETURN_IF_ERROR(context_->check());
  std::unique_ptr<Memory> wrapped[2];  // queued work keeps the buffers
  std::byte* addresses[2];
  const sdk::Range* ranges[] = {&conversion.source, &conversion.target};
  for (std::size_t i = 0; i < 2; ++i) {
    if (ranges[i]->buffer() == nullptr) {
      auto memory = context_->wrap_host(ranges[i]->data(), ranges[i]->bytes());
      if (!memory.ok()) return memory.status();
      wrapped[i] = std::move(*memory);
    }
    addresses[i] = wrapped[i] ? wrapped[i]->address() : ranges[i]->data();
  }
  Recorder recorder(*context_, queue_of(*context_, order), waits_of(order));
  auto event = recorder.finish(kernels::convert_panels(*context_, recorder, *layout,
                                                       conversion.plain(), addresses[packs ? 0 : 1],
                                                       addresses[packs ? 1 : 0], packs));
  if (!event.ok()) return event.status();
  return complete(*context_, order, *event, true);
}

Status ClDevice::counters(bp_device_counters& out) {
  if (!context_->is_open()) return {};
  if (!context_->check().ok()) out.health = BP_HEALTH_LOST;
  out.live_bytes = context_->pool().live_bytes();
  out.peak_bytes = context_->pool().peak_bytes();
  return {};
}

Result<std::unique_ptr<sdk::Stream>> ClDevice::create_stream() {
  // On the host's own memory a call is over when it returns: nothing is copied, nobody is woken.
  if (context_->device().binds_host_memory)
    return Status(BP_UNSUPPORTED, "the device works on the host's memory");
  auto queue = context_->create_queue();
  if (!queue.ok()) return queue.status();
  return std::unique_ptr<sdk::Stream>(std::make_unique<ClStream>(context_, *queue));
}
Result<std::unique_ptr<sdk::Event>> ClDevice::create_event() {
  return std::unique_ptr<sdk::Event>(std::make_unique<ClEvent>(context_));
}

Status ClDevice::begin_profile() { return context_->begin_profile(); }
Status ClDevice::end_profile(bp_profile_sink* sink) { return context_->end_profile(sink); }

}  // namespace backplane::opencl
