// A pretend accelerator: memory of its own, one queue of work per stream, and a unit for products
// that reads weights from tiles. Everything that is not a product runs on the SDK's plain kernels.
//
// NPU_INT8=1 keeps the weights of inference as numbers of 8 bits with one scale per row.
#include <backplane/sdk.hpp>
#include <backplane/sdk/host_kernels.hpp>

#include <atomic>
#include <cmath>
#include <cstdlib>

namespace npu {

namespace bp = backplane::sdk;
using bp::Result;
using bp::Status;
using Shape = std::vector<std::int64_t>;

// ---- Weights in tiles ---------------------------------------------------------------------------
//
// The right factor of a product has `depth` rows and `columns` columns. A tile holds kWidth
// columns, row after row, and zeros beyond the last one; of 8 bits, its scales follow it.

constexpr std::int64_t kWidth = 8;

struct Tiles {
  enum Id : std::uint64_t { kOfColumns = 1, kOfRows = 2, kInt8 = 4 };  // layout_id: the sum
  std::uint64_t id;

  // Of [columns, depth], as aten.linear has its weights, else of [depth, columns].
  bool of_rows() const { return (id & kOfRows) != 0; }
  bool is_int8() const { return (id & kInt8) != 0; }
  static bool knows(std::uint64_t id) {
    return (id & ~std::uint64_t{kInt8}) == kOfColumns || (id & ~std::uint64_t{kInt8}) == kOfRows;
  }
  std::int64_t columns(const Shape& weight) const { return of_rows() ? weight[0] : weight[1]; }
  std::int64_t depth(const Shape& weight) const { return of_rows() ? weight[1] : weight[0]; }
  std::int64_t tile_bytes(std::int64_t depth) const {
    return is_int8() ? kWidth * depth + kWidth * 4 : kWidth * depth * 4;
  }
  std::int64_t bytes(const Shape& weight) const {
    return (columns(weight) + kWidth - 1) / kWidth * tile_bytes(depth(weight));
  }
};

// Of a strided weight, of float32. `back`: from tiles to the weight.
void convert(Tiles tiles, const Shape& dims, const Shape& strides, float* weight, std::byte* packed,
             bool back) {
  const std::int64_t columns = tiles.columns(dims), depth = tiles.depth(dims);
  const std::int64_t by_column = strides[tiles.of_rows() ? 0 : 1];
  const std::int64_t by_row = strides[tiles.of_rows() ? 1 : 0];
  if (!back) std::memset(packed, 0, static_cast<std::size_t>(tiles.bytes(dims)));
  for (std::int64_t c = 0; c < columns; ++c) {
    std::byte* const tile = packed + c / kWidth * tiles.tile_bytes(depth);
    auto* const floats = reinterpret_cast<float*>(tile) + c % kWidth;
    auto* const bytes = reinterpret_cast<std::int8_t*>(tile) + c % kWidth;
    float& scale = reinterpret_cast<float*>(tile + kWidth * depth)[c % kWidth];
    float* const column = weight + c * by_column;
    if (tiles.is_int8() && !back) {
      float top = 0;
      for (std::int64_t k = 0; k < depth; ++k) top = std::max(top, std::abs(column[k * by_row]));
      scale = top / 127;
    }
    for (std::int64_t k = 0; k < depth; ++k) {
      float& element = column[k * by_row];
      if (back)
        element =
            tiles.is_int8() ? static_cast<float>(bytes[k * kWidth]) * scale : floats[k * kWidth];
      else if (tiles.is_int8())
        bytes[k * kWidth] = static_cast<std::int8_t>(scale == 0 ? 0 : std::lround(element / scale));
      else
        floats[k * kWidth] = element;
    }
  }
}

// ---- Products -----------------------------------------------------------------------------------

// result[rows, columns] = left[rows, depth] × tiles + what is there
template <class Element>
void multiply(const float* left, const std::byte* tile, std::int64_t tile_bytes, float* result,
              std::int64_t rows, std::int64_t depth, std::int64_t columns) {
  for (std::int64_t c = 0; c < columns; c += kWidth, tile += tile_bytes) {
    const auto* const elements = reinterpret_cast<const Element*>(tile);
    const auto* const scales = reinterpret_cast<const float*>(tile + kWidth * depth);
    const std::int64_t width = std::min(kWidth, columns - c);
    for (std::int64_t r = 0; r < rows; ++r) {
      float sums[kWidth] = {};
      for (std::int64_t k = 0; k < depth; ++k)
        for (std::int64_t i = 0; i < kWidth; ++i)
          sums[i] += left[r * depth + k] * static_cast<float>(elements[k * kWidth + i]);
      for (std::int64_t i = 0; i < width; ++i)
        result[r * columns + c + i] += sizeof(Element) == 1 ? sums[i] * scales[i] : sums[i];
    }
  }
}

// aten.linear(x, weight, bias?), aten.mm(x, weight), aten.addmm(bias, x, weight)
class Product final : public bp::Kernel {
 public:
  Product(const bp::StepContext& step, std::size_t left, std::optional<std::size_t> bias)
      : left_(left), bias_(bias), tiles_{step.operand(left + 1).layout.layout_id} {
    depth_ = step.operand(left).dims.back();
    columns_ = step.result().dims.back();
    rows_ = columns_ == 0 ? 0 : step.result().elements() / columns_;
  }
  Status run(const bp::KernelCall& call) const override {
    using bp::host_kernels::in, bp::host_kernels::out;
    for (std::int64_t i = 0; i < rows_ * columns_; ++i)
      out(call)[i] = bias_ ? in(call, *bias_)[i % columns_] : 0;
    const auto product = tiles_.is_int8() ? multiply<std::int8_t> : multiply<float>;
    product(in(call, left_), call.operands[left_ + 1], tiles_.tile_bytes(depth_), out(call), rows_,
            depth_, columns_);
    return {};
  }

 private:
  std::size_t left_;
  std::optional<std::size_t> bias_;
  Tiles tiles_;
  std::int64_t depth_ = 0, columns_ = 0, rows_ = 0;
};

// Products of weights in tiles; of other operands as the SDK has them.
bp::KernelRow product_row(std::string_view op, std::size_t left, std::size_t bias,
                          bp::KernelRow::Make plain) {
  return {op, [=](const bp::StepContext& step) -> Result<std::unique_ptr<bp::Kernel>> {
            if (step.operand(left + 1).layout.kind != BP_LAYOUT_OPAQUE) return plain(step);
            const bool has_bias = bias != left && step.has_operand(bias);
            return std::make_unique<Product>(step, left,
                                             has_bias ? std::optional(bias) : std::nullopt);
          }};
}
std::vector<bp::KernelRow> rows() {
  auto rows = bp::host_kernels::rows();
  rows.push_back(product_row("aten.linear", 0, 2, bp::host_kernels::linear));
  rows.push_back(product_row("aten.mm", 0, 0, bp::host_kernels::product));
  rows.push_back(product_row("aten.addmm", 1, 0, bp::host_kernels::addmm));
  return rows;
}

// What a node wants of the weight that it reads as `operand`.
std::uint64_t tiles_for(const bp::NodeView& node, std::size_t operand, bool turned) {
  const std::string_view op = node.op();
  if (op == "aten.linear" && operand == 1 && !turned) return Tiles::kOfRows;
  const bool plain_sum = op == "aten.addmm" && node.real_or("alpha", 1) == 1 &&
                         node.real_or("beta", 1) == 1 && node.operand(0).rank() == 1 &&
                         node.operand(0).dims()[0] == node.result().dims()[1];
  if ((op == "aten.mm" && operand == 1) || (plain_sum && operand == 2))
    return turned ? Tiles::kOfRows : Tiles::kOfColumns;
  return 0;
}

// ---- The device -----------------------------------------------------------------------------

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

  Result<bp::Buffer> allocate(std::size_t bytes) override {
    if (live_->fetch_add(bytes) + bytes > kMemoryBytes) {
      live_->fetch_sub(bytes);
      return Status(BP_OUT_OF_MEMORY, "the NPU has " + std::to_string(kMemoryBytes) + " bytes");
    }
    auto memory = bp::host_buffer(bytes, [bytes, live = live_] { live->fetch_sub(bytes); });
    if (!memory.ok()) live_->fetch_sub(bytes);
    return memory;
  }
  Status copy(const bp::Copy& copy, const bp::Order& order) override {
    return queues_.submit(order, true, [copy]() -> Status {
      if (copy.bytes() != 0) std::memmove(copy.target.data(), copy.source.data(), copy.bytes());
      return {};
    });
  }

  bp::Claims claims(const bp::GraphView& graph) override { return table_.claims(graph); }
  Result<std::unique_ptr<bp::Executable>> compile(const bp::Subgraph& graph,
                                                  const bp::CompileOptions& options) override {
    const char* const wish = std::getenv("NPU_INT8");
    const bool int8 = options.role() == BP_ROLE_SINGLE && wish != nullptr && *wish == '1';
    auto layouts = bp::choose_weight_layouts(
        graph, options, [int8](const bp::NodeView& node, std::size_t operand, bool turned) {
          const std::uint64_t id = tiles_for(node, operand, turned);
          return id != 0 && int8 ? id | Tiles::kInt8 : id;
        });
    auto program = table_.compile(graph, std::move(layouts));
    BP_SDK_RETURN_IF_ERROR(program->use_device_memory({
        [this](const void* data, std::size_t bytes) -> Result<std::shared_ptr<std::byte>> {
          auto made = allocate(bytes);
          if (!made.ok()) return made.status();
          auto memory = std::make_shared<bp::Buffer>(std::move(*made));
          std::memcpy(memory->data(), data, bytes);
          return std::shared_ptr<std::byte>(memory, memory->data());
        },
        [](std::byte* to, const void* from, std::size_t bytes) -> Status {
          std::memcpy(to, from, bytes);
          return {};
        },
    }));
    return std::make_unique<bp::QueuedProgram>(queues_, std::move(program));
  }

  Result<std::unique_ptr<bp::Stream>> create_stream() override { return queues_.create_stream(); }
  Result<std::unique_ptr<bp::Event>> create_event() override { return queues_.create_event(); }

  Result<std::uint64_t> layout_bytes(const bp::TensorDesc& desc) override {
    if (!Tiles::knows(desc.layout.layout_id) || desc.dims.size() != 2 || desc.dtype != bp::kFloat32)
      return Status(BP_DATA_CORRUPT, "not a layout of this NPU");
    return static_cast<std::uint64_t>(Tiles{desc.layout.layout_id}.bytes(desc.dims));
  }
  Status layout_convert(const bp::TensorDesc& source_desc, const bp::Range& source,
                        const bp::TensorDesc& target_desc, const bp::Range& target,
                        const bp::Order& order) override {
    const bool back = source_desc.layout.kind == BP_LAYOUT_OPAQUE;
    const bp::TensorDesc& packed = back ? source_desc : target_desc;
    const bp::TensorDesc& plain = back ? target_desc : source_desc;
    if (auto bytes = layout_bytes(packed); !bytes.ok()) return bytes.status();
    return queues_.submit(order, true, [=, tiles = Tiles{packed.layout.layout_id}]() -> Status {
      convert(tiles, plain.dims, plain.strides, (back ? target : source).data<float>(),
              (back ? source : target).data(), back);
      return {};
    });
  }

 private:
  static constexpr std::size_t kMemoryBytes = std::size_t{2} << 30;
  std::shared_ptr<std::atomic<std::size_t>> live_ = std::make_shared<std::atomic<std::size_t>>(0);
  bp::KernelTable table_{rows()};
  bp::Queues queues_;
};

}  // namespace npu

BP_PLUGIN("npu", "Backplane examples", "0.1.0", npu::Npu)
