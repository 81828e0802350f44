// The plugin @NAME@: products are calls of a library, the rest runs on the SDK's plain kernels.
//
// It runs as it is, with the stand-in of library.h in the host's memory. Make it yours from the
// inside: your library, allocate and copy, then one row after the other, then what info() says
// about speed.
#include <backplane/sdk.hpp>
#include <backplane/sdk/host_kernels.hpp>

#include <cstring>
#include <mutex>

#include "library.h"

namespace plugin {

namespace bp = backplane::sdk;
using bp::Result;
using bp::Status;

Status library_error(const char* call, lib_code code) {
  const bp_code meaning = code == LIB_NO_MEMORY      ? BP_OUT_OF_MEMORY
                          : code == LIB_BAD_ARGUMENT ? BP_INVALID_ARGUMENT
                                                     : BP_INTERNAL;
  return {meaning, std::string(call) + " failed: " + lib_words(code)};
}

// The library, opened with the device: whoever only lists plugins does not touch it.
class Library {
 public:
  Library() = default;
  ~Library() {
    if (handle_ != nullptr) lib_destroy(handle_);
  }
  Status open() {
    const std::lock_guard lock(mutex_);
    if (handle_ != nullptr) return {};
    const lib_code code = lib_create(&handle_);
    return code == LIB_OK ? Status() : library_error("lib_create", code);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  lib_handle get() const { return handle_; }

 private:
  std::mutex mutex_;
  lib_handle handle_ = nullptr;
};

// ---- Weights in the library's order -----------------------------------------------------------

enum Order : std::uint64_t { kPlain = 1, kTransposed = 2 };  // layout_id

// A weight that a product reads: as aten.mm has it, [depth, columns], or as aten.linear does.
struct Weight {
  std::int64_t depth, columns, row_stride, column_stride;

  Weight(std::span<const std::int64_t> dims, std::span<const std::int64_t> strides, bool transposed)
      : depth(dims[transposed ? 1 : 0]),
        columns(dims[transposed ? 0 : 1]),
        row_stride(strides[transposed ? 1 : 0]),
        column_stride(strides[transposed ? 0 : 1]) {}
  std::size_t packed_bytes() const { return lib_packed_bytes(depth, columns); }
};

// The order in which a node reads its operand best; 0: as it is.
std::uint64_t wanted_order(const bp::NodeView& node, std::size_t operand, bool turned) {
  const auto product = bp::find_product(node);
  if (!product || product->weight != operand) return 0;
  return product->transposed != turned ? kTransposed : kPlain;
}

// ---- Products ---------------------------------------------------------------------------------

// aten.linear(x, weight, bias?), aten.mm(x, weight), aten.addmm(bias, x, weight)
class Product final : public bp::Kernel {
 public:
  Product(const Library& library, const bp::StepContext& step, const bp::ProductOperands& at)
      : library_(library),
        at_(at),
        weight_(step.operand(at.weight).dims, step.operand(at.weight).strides, at.transposed),
        packed_(step.operand(at.weight).layout.kind == BP_LAYOUT_OPAQUE) {
    product_.columns = step.result().dims.back();
    product_.rows = product_.columns == 0 ? 0 : step.result().elements() / product_.columns;
    product_.depth = weight_.depth;
    product_.has_bias = at.bias.has_value();
    product_.activation = LIB_IDENTITY;
    constexpr std::size_t kAlignment = 64;  // of what follows the workspace
    workspace_bytes_ =
        (lib_workspace(library.get(), &product_) + kAlignment - 1) / kAlignment * kAlignment;
  }
  // The library's workspace, and behind it a weight that changes with every call.
  std::uint64_t scratch_bytes() const override {
    return workspace_bytes_ + (packed_ ? 0 : weight_.packed_bytes());
  }
  Status run(const bp::KernelCall& call) const override {
    using bp::host_kernels::in, bp::host_kernels::out;
    const void* packed = call.operands[at_.weight];
    if (!packed_) {
      std::byte* const made = call.scratch + workspace_bytes_;
      if (const lib_code code =
              lib_pack(library_.get(), weight_.depth, weight_.columns, in(call, at_.weight),
                       weight_.row_stride, weight_.column_stride, made);
          code != LIB_OK)
        return library_error("lib_pack", code);
      packed = made;
    }
    const lib_code code =
        lib_multiply(library_.get(), &product_, in(call, at_.left), packed,
                     at_.bias ? in(call, *at_.bias) : nullptr, out(call), call.scratch);
    return code == LIB_OK ? Status() : library_error("lib_multiply", code);
  }

 private:
  const Library& library_;
  bp::ProductOperands at_;
  Weight weight_;
  bool packed_;
  lib_product product_{};
  std::size_t workspace_bytes_ = 0;
};

// What the device computes: whatever has no row here runs on the CPU. Of two rows with one name the
// later counts, so that the library's products replace the plain ones.
std::vector<bp::KernelRow> rows(const Library& library) {
  std::vector<bp::KernelRow> rows = bp::host_kernels::rows();
  for (const char* const op : {"aten.linear", "aten.mm", "aten.addmm"})
    rows.push_back(
        {op, [&library](const bp::StepContext& step) -> Result<std::unique_ptr<bp::Kernel>> {
           const auto operands = bp::find_product(step.node());
           if (!operands) return bp::host_kernels::addmm(step);  // of scaled terms, or of matrices
           return std::make_unique<Product>(library, step, *operands);
         }});
  return rows;
}

// ---- The device -------------------------------------------------------------------------------

class Device final : public bp::Device {
 public:
  // Called before the device is opened, so it must not touch the hardware. Speeds decide what is
  // worth a transfer; what is left out is guessed.
  bp::DeviceInfo info() const override {
    bp::DeviceInfo info;
    info.name = "@NAME@ device";
    info.architecture = "@NAME@-1";
    return info;
  }

  Status open() override { return library_.open(); }

  Result<bp::Buffer> allocate(std::size_t bytes) override { return bp::host_buffer(bytes); }
  // To, from, or on the device; at most one end lies in the host's memory.
  Status copy(const bp::Copy& copy, const bp::Order& order) override {
    return queues_.submit(order, true, [copy]() -> Status {
      if (copy.bytes() != 0) std::memmove(copy.target.data(), copy.source.data(), copy.bytes());
      return {};
    });
  }

  bp::Claims claims(const bp::GraphView& graph) override { return table_.claims(graph); }
  Result<std::unique_ptr<bp::Executable>> compile(const bp::Subgraph& graph,
                                                  const bp::CompileOptions& options) override {
    auto layouts = bp::choose_weight_layouts(graph, options, wanted_order);
    return std::make_unique<bp::QueuedProgram>(queues_, table_.compile(graph, std::move(layouts)));
  }

  Result<std::unique_ptr<bp::Stream>> create_stream() override { return queues_.create_stream(); }
  Result<std::unique_ptr<bp::Event>> create_event() override { return queues_.create_event(); }

  // Weights are packed once for each version that they have, by these two.
  Result<std::uint64_t> layout_bytes(const bp::TensorDesc& desc) override {
    const std::uint64_t order = desc.layout.layout_id;
    if ((order != kPlain && order != kTransposed) || desc.dims.size() != 2 ||
        desc.dtype != bp::kFloat32)
      return Status(BP_DATA_CORRUPT, "not an order of the library");
    return static_cast<std::uint64_t>(
        Weight(desc.dims, desc.dims, order == kTransposed).packed_bytes());
  }
  Status layout_convert(const bp::LayoutConversion& c, const bp::Order& order) override {
    if (c.plain().layout.kind == BP_LAYOUT_OPAQUE)
      return {BP_UNSUPPORTED, "from one order of the library to another"};
    const Weight weight(c.plain().dims, c.plain().strides,
                        c.packed().layout.layout_id == kTransposed);
    return queues_.submit(order, true, [this, c, weight]() -> Status {
      const lib_code code =
          c.unpacks()
              ? lib_unpack(library_.get(), weight.depth, weight.columns, c.source.data(),
                           c.target.data<float>(), weight.row_stride, weight.column_stride)
              : lib_pack(library_.get(), weight.depth, weight.columns, c.source.data<float>(),
                         weight.row_stride, weight.column_stride, c.target.data());
      return code == LIB_OK ? Status()
                            : library_error(c.unpacks() ? "lib_unpack" : "lib_pack", code);
    });
  }

 private:
  Library library_;
  bp::KernelTable table_{rows(library_)};
  bp::Queues queues_;
};

}  // namespace plugin

BP_PLUGIN("@NAME@", "@NAME@ Inc.", "0.1.0", plugin::Device)
