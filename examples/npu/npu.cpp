// A pretend accelerator: memory of its own, one queue of work per stream, and a unit for products
// that reads weights from tiles. Everything that is not a product runs on the SDK's plain kernels.
//
// NPU_INT8=1 keeps the weights of inference as numbers of 8 bits with one scale per column.
#include <backplane/sdk.hpp>
#include <backplane/sdk/counted_memory.hpp>
#include <backplane/sdk/host_kernels.hpp>
#include <backplane/sdk/tiled_weights.hpp>

#include <algorithm>
#include <cstdlib>

namespace npu {

namespace bp = backplane::sdk;
using bp::Result;
using bp::Status;

// ---- Products of weights in tiles --------------------------------------------------------------

constexpr std::int64_t kWidth = 8;  // columns of a tile
constexpr std::uint64_t kFloat = 1, kInt8 = 2;

template <class Element>
void multiply_panel(const bp::TiledProduct& p, std::int64_t panel) {
  const auto* const elements = reinterpret_cast<const Element*>(p.panel(panel));
  const auto* const scales =
      reinterpret_cast<const float*>(p.panel(panel) + p.format.beside(p.dtype, p.depth));
  const std::int64_t first = panel * kWidth, width = std::min(kWidth, p.columns - first);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const float* const left = static_cast<const float*>(p.left) + r * p.depth;
    float* const result = static_cast<float*>(p.result) + r * p.columns + first;
    float sums[kWidth] = {};
    for (std::int64_t k = 0; k < p.depth; ++k)
      for (std::int64_t i = 0; i < kWidth; ++i)
        sums[i] += left[k] * static_cast<float>(elements[k * kWidth + i]);
    for (std::int64_t i = 0; i < width; ++i) {
      result[i] = sizeof(Element) == 1 ? sums[i] * scales[i] : sums[i];
      if (p.bias != nullptr) result[i] += static_cast<const float*>(p.bias)[first + i];
    }
  }
}
Status multiply(const bp::TiledProduct& p) {
  const auto one = p.format.name == kInt8 ? multiply_panel<std::int8_t> : multiply_panel<float>;
  for (std::int64_t panel = 0; panel < p.format.panels(p.columns); ++panel) one(p, panel);
  return {};
}

// ---- The device --------------------------------------------------------------------------------

class Npu final : public bp::Device {
 public:
  bp::DeviceInfo info() const override {
    bp::DeviceInfo info;
    info.name = "Example NPU";
    info.architecture = "npu-example-1";
    info.memory_bytes = kMemoryBytes;
    info.memory_bytes_per_s = 1e9;
    info.to_device_bytes_per_s = info.from_device_bytes_per_s = 8e9;
    info.copy_latency_ns = info.launch_latency_ns = 10'000;
    info.rates = {{bp::kFloat32, 50e9}, {bp::kInt8, 200e9}};
    return info;
  }

  Result<bp::Buffer> allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  Status copy(const bp::Copy& copy, const bp::Order& order) override {
    return queues_.submit(order, true, [copy] {
      return write(copy.target.data(), copy.source.data(), copy.bytes());
    });
  }

  bp::Claims claims(const bp::GraphView& graph) override { return table_.claims(graph); }
  Result<std::unique_ptr<bp::Executable>> compile(const bp::Subgraph& graph,
                                                  const bp::CompileOptions& options) override {
    const char* const wish = std::getenv("NPU_INT8");
    const bool int8 = options.role() == BP_ROLE_SINGLE && wish != nullptr && *wish == '1';
    auto program = table_.compile(graph, tiles_.choose(graph, options, int8 ? kInt8 : kFloat));
    BP_SDK_RETURN_IF_ERROR(program->use_device_memory(*this, write));
    return std::make_unique<bp::QueuedProgram>(queues_, std::move(program));
  }

  Result<std::unique_ptr<bp::Stream>> create_stream() override { return queues_.create_stream(); }
  Result<std::unique_ptr<bp::Event>> create_event() override { return queues_.create_event(); }

  Result<std::uint64_t> layout_bytes(const bp::TensorDesc& desc) override {
    return tiles_.bytes(desc);
  }
  Status layout_convert(const bp::LayoutConversion& c, const bp::Order& order) override {
    return queues_.submit(
        order, true, [this, c] { return tiles_.convert(c, c.source.data(), c.target.data()); });
  }

 private:
  static Status write(std::byte* to, const void* from, std::size_t bytes) {
    if (bytes != 0) std::memmove(to, from, bytes);
    return {};
  }

  static constexpr std::size_t kMemoryBytes = std::size_t{2} << 30;
  const bp::TiledWeights tiles_{{.name = kFloat, .columns = kWidth},
                                {.name = kInt8, .columns = kWidth, .code = bp::symmetric_int8()}};
  bp::CountedMemory memory_{kMemoryBytes};
  bp::KernelTable table_{tiles_.rows(bp::host_kernels::rows(), multiply)};
  bp::Queues queues_;
};

}  // namespace npu

BP_PLUGIN("npu", "Backplane examples", "0.1.0", npu::Npu)
