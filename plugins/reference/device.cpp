#include "device.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include <backplane/sdk/queued_program.hpp>

#include "blob.h"
#include "layouts.h"

namespace backplane::reference {
namespace {

using sdk::Status;

constexpr std::size_t kAlignment = 64;
constexpr std::string_view kRequirement = "backplane-reference 1";

double number_from(const char* name, double fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == 0) return fallback;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  return *end == 0 && value >= 0 ? value : fallback;
}

// A program that a queue runs, and that can be stored.
class QueuedExecutable final : public sdk::QueuedProgram {
 public:
  QueuedExecutable(sdk::Queues& queues, std::shared_ptr<sdk::ProgramExecutable> program,
                   std::vector<bp_layout> layouts, sdk::Worker::Work before)
      : QueuedProgram(queues, std::move(program), std::move(before)), layouts_(std::move(layouts)) {
    requirement = kRequirement;
  }
  sdk::Result<std::string> save() override { return save_graph(program().graph(), layouts_); }
  Status execute(const sdk::Execution& call) override {
    BP_SDK_RETURN_IF_ERROR(check_ranges(program(), call));
    return QueuedProgram::execute(call);
  }

 private:
  std::vector<bp_layout> layouts_;
};

// The program itself, run in the calling thread.
class DirectExecutable final : public sdk::Executable {
 public:
  explicit DirectExecutable(std::shared_ptr<sdk::ProgramExecutable> program)
      : program_(std::move(program)) {
    inputs = program_->inputs;
    outputs = program_->outputs;
    dim_class_count = program_->dim_class_count;
    flags = BP_EXECUTABLE_SYNCHRONOUS;
  }
  sdk::Result<std::uint64_t> workspace_bytes(std::span<const std::int64_t> dims) override {
    return program_->workspace_bytes(dims);
  }
  Status execute(const sdk::Execution& call) override {
    BP_SDK_RETURN_IF_ERROR(check_ranges(*program_, call));
    return program_->execute(call);
  }

 private:
  std::shared_ptr<sdk::ProgramExecutable> program_;
};

Status check_claimed(const sdk::Subgraph& graph) {
  const sdk::Claims claims = claim_graph(graph);
  if (claims.refused.empty()) return {};
  return {BP_UNSUPPORTED, claims.refused[0].text};
}

Tensor tensor_of(const sdk::TensorDesc& desc, const sdk::Range& range) {
  Tensor t;
  t.type = type_of(desc.dtype);
  t.dims = desc.dims;
  t.strides = desc.strides;
  t.data = range.data();
  t.layout = desc.layout.kind == BP_LAYOUT_OPAQUE ? desc.layout.layout_id : 0;
  return t;
}
Status check_desc(const sdk::TensorDesc& desc) {
  if (type_of(desc.dtype) == Type::kNone) return {BP_UNSUPPORTED, "element type not supported"};
  if (desc.layout.kind == BP_LAYOUT_STRIDED) return {};
  if (desc.layout.kind != BP_LAYOUT_OPAQUE || !is_panel_layout(desc.layout.layout_id))
    return {BP_UNSUPPORTED, "not a layout of this plugin"};
  if (desc.dims.size() < 2) return {BP_UNSUPPORTED, "panels need a matrix"};
  return {};
}
std::uint64_t bytes_of_desc(const sdk::TensorDesc& desc) {
  const Type type = type_of(desc.dtype);
  if (desc.layout.kind == BP_LAYOUT_OPAQUE)
    return static_cast<std::uint64_t>(packed_bytes(desc.layout.layout_id, type, desc.dims));
  std::int64_t last = 0;
  for (std::size_t i = 0; i < desc.dims.size(); ++i) {
    if (desc.dims[i] == 0) return 0;
    last += (desc.dims[i] - 1) * desc.strides[i];
  }
  return static_cast<std::uint64_t>((last + 1) * bytes_of(type));
}

}  // namespace

Settings Settings::from_environment() {
  Settings s;
  s.devices = static_cast<std::uint32_t>(
      std::clamp(number_from("BACKPLANE_REFERENCE_DEVICES", 1), 1.0, 64.0));
  s.latency_ns = static_cast<std::uint64_t>(
      std::clamp(number_from("BACKPLANE_REFERENCE_LATENCY_NS", 0), 0.0, 1e12));
  s.lost_after = static_cast<std::uint64_t>(
      std::clamp(number_from("BACKPLANE_REFERENCE_LOST_AFTER", 0), 0.0, 1e12));
  s.fails_at = static_cast<std::uint64_t>(
      std::clamp(number_from("BACKPLANE_REFERENCE_FAILS_AT", 0), 0.0, 1e12));
  s.hangs_at = static_cast<std::uint64_t>(
      std::clamp(number_from("BACKPLANE_REFERENCE_HANGS_AT", 0), 0.0, 1e12));
  s.compile_ns = static_cast<std::uint64_t>(
      std::clamp(number_from("BACKPLANE_REFERENCE_COMPILE_NS", 0), 0.0, 1e12));
  s.bytes_per_s = number_from("BACKPLANE_REFERENCE_BANDWIDTH", 0);
  s.memory_bytes = static_cast<std::uint64_t>(
      std::clamp(number_from("BACKPLANE_REFERENCE_MEMORY", 0), 0.0, 1e18));
  return s;
}

// ---- Minimal ----

std::vector<std::unique_ptr<MinimalDevice>> MinimalDevice::enumerate() {
  const Settings settings = Settings::from_environment();
  std::vector<std::unique_ptr<MinimalDevice>> devices;
  for (std::uint32_t i = 0; i < settings.devices; ++i)
    devices.push_back(std::make_unique<MinimalDevice>(settings, i));
  return devices;
}

sdk::DeviceInfo MinimalDevice::info() const {
  sdk::DeviceInfo info;
  info.name = "Backplane reference device";
  info.architecture = "reference";
  info.driver = "1";
  info.unique_id = "reference:" + std::to_string(index_);
  info.memory_bytes = settings_.memory_bytes;
  info.alignment_bytes = kAlignment;
  info.memory_bytes_per_s = 4e9;
  info.to_device_bytes_per_s = info.from_device_bytes_per_s =
      settings_.bytes_per_s > 0 ? settings_.bytes_per_s : 4e9;
  info.copy_latency_ns = 2000 + static_cast<double>(settings_.latency_ns);
  info.launch_latency_ns = 5000 + static_cast<double>(settings_.latency_ns);
  info.rates = {
      {sdk::kFloat32, 2e9}, {sdk::kFloat64, 2e9}, {sdk::kBFloat16, 1e9}, {sdk::kFloat16, 1e9}};
  return info;
}

sdk::Result<sdk::Buffer> MinimalDevice::allocate(std::size_t bytes) {
  if (bytes > SIZE_MAX - kAlignment) return Status(BP_OUT_OF_MEMORY, "impossible size");
  const std::uint64_t live = usage_->live.fetch_add(bytes) + bytes;
  void* memory = nullptr;
  if (settings_.memory_bytes == 0 || live <= settings_.memory_bytes)
    memory =
        ::operator new(std::max<std::size_t>(bytes, 1), std::align_val_t(kAlignment), std::nothrow);
  if (memory == nullptr) {
    usage_->live.fetch_sub(bytes);
    return Status(BP_OUT_OF_MEMORY, "out of device memory");
  }
  std::uint64_t peak = usage_->peak.load();
  while (peak < live && !usage_->peak.compare_exchange_weak(peak, live)) {
  }
  return sdk::Buffer(memory, bytes, [usage = usage_, bytes](void* at) {
    usage->live.fetch_sub(bytes);
    ::operator delete(at, std::align_val_t(kAlignment));
  });
}

void MinimalDevice::pass_link(std::uint64_t bytes) const {
  double ns = static_cast<double>(settings_.latency_ns);
  if (settings_.bytes_per_s > 0) ns += static_cast<double>(bytes) / settings_.bytes_per_s * 1e9;
  if (ns >= 1) std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<std::int64_t>(ns)));
}

Status MinimalDevice::copy(const sdk::Copy& copy, const sdk::Order&) {
  pass_link(copy.bytes());
  if (copy.bytes()) std::memmove(copy.target.data(), copy.source.data(), copy.bytes());
  return {};
}

sdk::Result<std::unique_ptr<sdk::Executable>> MinimalDevice::compile(const sdk::Subgraph& graph,
                                                                     const sdk::CompileOptions&) {
  BP_SDK_RETURN_IF_ERROR(check_claimed(graph));
  return std::make_unique<DirectExecutable>(make_program(graph, {}));
}

// ---- Complete ----

std::vector<std::unique_ptr<ReferenceDevice>> ReferenceDevice::enumerate() {
  const Settings settings = Settings::from_environment();
  std::vector<std::unique_ptr<ReferenceDevice>> devices;
  for (std::uint32_t i = 0; i < settings.devices; ++i)
    devices.push_back(std::make_unique<ReferenceDevice>(settings, i));
  return devices;
}

Status ReferenceDevice::copy(const sdk::Copy& copy, const sdk::Order& order) {
  return queues_.submit(order, true, [this, copy]() -> Status {
    BP_SDK_RETURN_IF_ERROR(check_lost());
    return MinimalDevice::copy(copy, {});
  });
}

sdk::Result<std::unique_ptr<sdk::Executable>> ReferenceDevice::compile(
    const sdk::Subgraph& graph, const sdk::CompileOptions& options) {
  BP_SDK_RETURN_IF_ERROR(check_claimed(graph));
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(settings_.compile_ns);
  do {
    if (options.cancelled()) return Status(BP_CANCELLED, "compile was cancelled");
    if (settings_.compile_ns != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (std::chrono::steady_clock::now() < end);
  std::vector<bp_layout> layouts = choose_layouts(graph, options);
  auto program = make_program(graph, layouts);
  return std::make_unique<QueuedExecutable>(queues_, std::move(program), std::move(layouts),
                                            pass_launch());
}

Status ReferenceDevice::counters(bp_device_counters& out) {
  out.live_bytes = usage_->live.load();
  out.peak_bytes = usage_->peak.load();
  if (is_lost_) out.health = BP_HEALTH_LOST;
  return {};
}

sdk::Result<std::unique_ptr<sdk::Stream>> ReferenceDevice::create_stream() {
  return queues_.create_stream();
}
sdk::Result<std::unique_ptr<sdk::Event>> ReferenceDevice::create_event() {
  return queues_.create_event();
}

sdk::Result<std::uint64_t> ReferenceDevice::layout_bytes(const sdk::TensorDesc& desc) {
  BP_SDK_RETURN_IF_ERROR(check_desc(desc));
  return bytes_of_desc(desc);
}
Status ReferenceDevice::layout_convert(const sdk::LayoutConversion& c, const sdk::Order& order) {
  BP_SDK_RETURN_IF_ERROR(check_desc(c.source_desc));
  BP_SDK_RETURN_IF_ERROR(check_desc(c.target_desc));
  return queues_.submit(order, true,
                        [from = tensor_of(c.source_desc, c.source),
                         to = tensor_of(c.target_desc, c.target)]() -> Status {
                          convert_layout(to, from);
                          return {};
                        });
}

std::uint32_t ReferenceDevice::check_blob(std::string_view requirement) {
  return requirement == kRequirement ? BP_BLOB_COMPATIBLE : BP_BLOB_RECOMPILE;
}

sdk::Result<std::unique_ptr<sdk::Executable>> ReferenceDevice::load(
    std::span<const std::byte> blob) {
  auto loaded = load_graph(blob);
  if (!loaded.ok()) return loaded.status();
  const sdk::GraphView graph((*loaded)->graph);
  if (!check_claimed(graph).ok())
    return Status(BP_DATA_CORRUPT, "the blob's graph has an unknown operator");
  auto program = make_program(graph, (*loaded)->layouts);
  return std::make_unique<QueuedExecutable>(queues_, std::move(program), (*loaded)->layouts,
                                            pass_launch());
}

}  // namespace backplane::reference
