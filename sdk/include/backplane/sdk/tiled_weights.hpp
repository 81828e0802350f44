// Weights of products in tiles: how they lie, which products want them, how they are packed and
// unpacked, and rows of a KernelTable for products of them.
//
// The right factor of a product has `depth` rows and `columns` columns; the weight is the factor
// itself (aten.mm, aten.addmm) or its transpose (aten.linear). Tiles of some rows and columns lie
// behind each other, those of the same columns first: together they are a panel. What a tile has
// beyond the factor's end is zero.
#pragma once

#include <backplane/sdk/kernel_table.hpp>
#include <backplane/sdk/splits.hpp>
#include <backplane/sdk/weights.hpp>

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace backplane::sdk {

// How elements are stored that are not those of the weight: column by column, of float32.
struct ColumnCode {
  std::int64_t element_bytes = 0;
  std::int64_t beside_bytes = 0;  // of a column beside its elements: a scale, say
  std::function<void(std::span<const float> column, std::byte* elements, std::byte* beside)> encode;
  std::function<void(const std::byte* elements, const std::byte* beside, std::span<float> column)>
      decode;
};

// Integers of 8 bits, and beside them the float32 by which a column's are multiplied. A column with
// an element that is not finite is one of NaN.
inline ColumnCode symmetric_int8() {
  const auto encode = [](std::span<const float> column, std::byte* elements, std::byte* beside) {
    float scale = 0;
    for (const float x : column) scale = std::max(scale, std::abs(x) / 127);
    const bool finite =
        std::all_of(column.begin(), column.end(), [](float x) { return std::isfinite(x); });
    for (std::size_t k = 0; k < column.size(); ++k) {
      const bool zero = !finite || scale == 0;
      const auto q = static_cast<std::int8_t>(
          zero ? 0 : std::lround(std::clamp(column[k] / scale, -127.0F, 127.0F)));
      elements[k] = static_cast<std::byte>(q);
    }
    if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(beside, &scale, sizeof scale);
  };
  const auto decode = [](const std::byte* elements, const std::byte* beside,
                         std::span<float> column) {
    float scale = 0;
    std::memcpy(&scale, beside, sizeof scale);
    for (std::size_t k = 0; k < column.size(); ++k)
      column[k] = static_cast<float>(static_cast<std::int8_t>(elements[k])) * scale;
  };
  return {1, sizeof(float), encode, decode};
}

struct TileFormat {
  // Part of layout_id, which is understood in other processes and by later versions of the plugin:
  // with anything below it changes too. Not 0.
  std::uint64_t name = 1;
  std::int64_t columns = 16, rows = 1;  // of a tile
  // So many rows have their elements of one column side by side; a divisor of `rows`.
  std::int64_t interleave = 1;
  std::vector<bp_dtype> dtypes{kFloat32};  // of weights that are packed; of 1, 2, 4 or 8 bytes
  std::optional<ColumnCode> code{};        // with one, float32 alone

  std::int64_t bytes_of_element(bp_dtype dtype) const {
    return code ? code->element_bytes : element_bytes(dtype);
  }
  std::int64_t panels(std::int64_t all_columns) const {
    return (all_columns + columns - 1) / columns;
  }
  // Of an element in its panel, in elements from its start.
  std::int64_t position(std::int64_t row, std::int64_t column) const {
    return (row / interleave * columns + column) * interleave + row % interleave;
  }
  // In bytes from a panel's start: what lies beside its columns, one after the other.
  std::int64_t beside(bp_dtype dtype, std::int64_t depth) const {
    const std::int64_t bytes = (depth + rows - 1) / rows * rows * columns * bytes_of_element(dtype);
    const std::int64_t unit = code ? std::max<std::int64_t>(code->beside_bytes, 1) : 1;
    return (bytes + unit - 1) / unit * unit;
  }
  std::int64_t panel_bytes(bp_dtype dtype, std::int64_t depth) const {
    return beside(dtype, depth) + (code ? columns * code->beside_bytes : 0);
  }
};

// result[rows, columns] = left[rows, depth] × tiles (+ bias[columns]); no size is 0, all but the
// tiles is row-major without gaps.
struct TiledProduct {
  const TileFormat& format;
  bp_dtype dtype;  // of all but the tiles
  std::int64_t rows, depth, columns;
  const void *left, *tiles, *bias;  // bias: null where there is none
  void* result;
  CallContext* context;  // as in KernelCall

  const std::byte* panel(std::int64_t i) const {
    return static_cast<const std::byte*>(tiles) + i * format.panel_bytes(dtype, depth);
  }
};
// Safe from several threads.
using MultiplyTiles = std::function<Status(const TiledProduct&)>;

namespace detail {

// A weight as the right factor that it is.
struct RightFactor {
  std::int64_t depth, columns;
  std::int64_t row_stride = 0, column_stride = 0;  // in elements

  RightFactor(const TensorDesc& weight, bool transposed)
      : depth(weight.dims[transposed ? 1 : 0]), columns(weight.dims[transposed ? 0 : 1]) {
    if (weight.strides.size() != 2) return;
    row_stride = weight.strides[transposed ? 1 : 0];
    column_stride = weight.strides[transposed ? 0 : 1];
  }
};

// One panel there or back.
class PanelConversion {
 public:
  PanelConversion(const TileFormat& format, const RightFactor& factor, bp_dtype dtype, bool unpacks)
      : format_(format), factor_(factor), dtype_(dtype), unpacks_(unpacks) {}

  void run(std::int64_t panel, const std::byte* source, std::byte* target) const {
    const std::int64_t first = panel * format_.columns;
    const std::int64_t width = std::min(format_.columns, factor_.columns - first);
    const std::int64_t plain = first * factor_.column_stride * element_bytes(dtype_);
    const std::int64_t bytes = format_.panel_bytes(dtype_, factor_.depth);
    const std::byte* const from = source + (unpacks_ ? panel * bytes : plain);
    std::byte* const to = target + (unpacks_ ? plain : panel * bytes);
    if (!unpacks_) std::memset(to, 0, static_cast<std::size_t>(bytes));
    if (format_.code) return unpacks_ ? decode(from, to, width) : encode(from, to, width);
    switch (element_bytes(dtype_)) {
      case 1:
        return copy<1>(from, to, width);
      case 2:
        return copy<2>(from, to, width);
      case 4:
        return copy<4>(from, to, width);
      default:
        return copy<8>(from, to, width);
    }
  }

 private:
  std::int64_t plain_position(std::int64_t row, std::int64_t column) const {
    return row * factor_.row_stride + column * factor_.column_stride;
  }
  template <std::int64_t kBytes>
  void copy(const std::byte* from, std::byte* to, std::int64_t width) const {
    for (std::int64_t k = 0; k < factor_.depth; ++k)
      for (std::int64_t c = 0; c < width; ++c) {
        const std::int64_t plain = plain_position(k, c), packed = format_.position(k, c);
        std::memcpy(to + (unpacks_ ? plain : packed) * kBytes,
                    from + (unpacks_ ? packed : plain) * kBytes, kBytes);
      }
  }
  void encode(const std::byte* plain, std::byte* panel, std::int64_t width) const {
    const ColumnCode& code = *format_.code;
    std::byte* const beside = panel + format_.beside(dtype_, factor_.depth);
    std::vector<float> column(static_cast<std::size_t>(factor_.depth));
    std::vector<std::byte> elements(column.size() * static_cast<std::size_t>(code.element_bytes));
    for (std::int64_t c = 0; c < width; ++c) {
      for (std::int64_t k = 0; k < factor_.depth; ++k)
        std::memcpy(&column[static_cast<std::size_t>(k)],
                    plain + plain_position(k, c) * std::int64_t{sizeof(float)}, sizeof(float));
      code.encode(column, elements.data(), beside + c * code.beside_bytes);
      for (std::int64_t k = 0; k < factor_.depth; ++k)
        std::memcpy(panel + format_.position(k, c) * code.element_bytes,
                    elements.data() + k * code.element_bytes,
                    static_cast<std::size_t>(code.element_bytes));
    }
  }
  void decode(const std::byte* panel, std::byte* plain, std::int64_t width) const {
    const ColumnCode& code = *format_.code;
    const std::byte* const beside = panel + format_.beside(dtype_, factor_.depth);
    std::vector<float> column(static_cast<std::size_t>(factor_.depth));
    std::vector<std::byte> elements(column.size() * static_cast<std::size_t>(code.element_bytes));
    for (std::int64_t c = 0; c < width; ++c) {
      for (std::int64_t k = 0; k < factor_.depth; ++k)
        std::memcpy(elements.data() + k * code.element_bytes,
                    panel + format_.position(k, c) * code.element_bytes,
                    static_cast<std::size_t>(code.element_bytes));
      code.decode(elements.data(), beside + c * code.beside_bytes, column);
      for (std::int64_t k = 0; k < factor_.depth; ++k)
        std::memcpy(plain + plain_position(k, c) * std::int64_t{sizeof(float)},
                    &column[static_cast<std::size_t>(k)], sizeof(float));
    }
  }

  const TileFormat& format_;
  const RightFactor& factor_;
  bp_dtype dtype_;
  bool unpacks_;
};

// A vendor's product as a kernel.
class TiledKernel final : public Kernel {
 public:
  TiledKernel(MultiplyTiles multiply, std::shared_ptr<const TileFormat> format,
              const ProductOperands& operands, const StepContext& step)
      : multiply_(std::move(multiply)),
        format_(std::move(format)),
        operands_(operands),
        dtype_(step.result().dtype),
        depth_(step.operand(operands.left).dims.back()),
        columns_(step.result().dims.back()),
        rows_(columns_ == 0 ? 0 : step.result().elements() / columns_) {}
  Status run(const KernelCall& call) const override {
    if (rows_ == 0) return {};
    return multiply_({*format_, dtype_, rows_, depth_, columns_, call.operands[operands_.left],
                      call.operands[operands_.weight],
                      operands_.bias ? call.operands[*operands_.bias] : nullptr, call.results[0],
                      call.context});
  }

 private:
  MultiplyTiles multiply_;
  std::shared_ptr<const TileFormat> format_;
  ProductOperands operands_;
  bp_dtype dtype_;
  std::int64_t depth_, columns_, rows_;
};

}  // namespace detail

// Made once, for all devices of the plugin; safe from several threads.
class TiledWeights {
 public:
  TiledWeights(std::initializer_list<TileFormat> formats) {
    for (const TileFormat& format : formats)
      formats_.push_back(std::make_shared<const TileFormat>(format));
  }

  // Device::layout_bytes.
  Result<std::uint64_t> bytes(const TensorDesc& desc) const {
    const auto format = find(desc.layout);
    if (format == nullptr || desc.dims.size() != 2 || !takes(*format, desc.dtype) ||
        !is_possible(desc.dims))
      return Status(BP_DATA_CORRUPT, "not tiles of this device");
    const detail::RightFactor factor(desc, is_transposed(desc.layout));
    return static_cast<std::uint64_t>(format->panels(factor.columns) *
                                      format->panel_bytes(desc.dtype, factor.depth));
  }

  // Between a strided weight and tiles that lie where this code can reach them.
  Status convert(const LayoutConversion& c, const std::byte* source, std::byte* target) const {
    auto packed_bytes = bytes(c.packed());
    if (!packed_bytes.ok()) return packed_bytes.status();
    if (c.plain().layout.kind != BP_LAYOUT_STRIDED)
      return {BP_UNSUPPORTED, "from tiles to other tiles"};
    const TileFormat& format = *find(c.packed().layout);
    const bp_dtype dtype = c.plain().dtype;
    const detail::RightFactor factor(c.plain(), is_transposed(c.packed().layout));
    if (factor.depth == 0) {
      if (!c.unpacks() && *packed_bytes != 0) std::memset(target, 0, *packed_bytes);
      return {};
    }
    const detail::PanelConversion panels(format, factor, dtype, c.unpacks());
    return split_rows(static_cast<std::size_t>(format.panels(factor.columns)),
                      static_cast<std::size_t>(format.panel_bytes(dtype, factor.depth)),
                      [&](std::size_t begin, std::size_t end) -> Status {
                        for (; begin < end; ++begin)
                          panels.run(static_cast<std::int64_t>(begin), source, target);
                        return {};
                      });
  }
  // Device::layout_convert, for memory that this code cannot reach: by way of the host's, with the
  // device's own copies. Done on return.
  Status convert_by_copies(Device& device, const LayoutConversion& c, const Order& order) const {
    if (auto known = bytes(c.packed()); !known.ok()) return known.status();
    std::vector<std::byte> source(c.source.bytes()), target(c.target.bytes());
    const auto here = [](std::vector<std::byte>& memory) {
      return Range(bp_range{nullptr, memory.data(), 0, memory.size()});
    };
    const auto fetch = [&](const Range& from, std::vector<std::byte>& to) -> Status {
      if (to.empty()) return {};
      return device.copy({from, here(to)}, order.without_signal());
    };
    BP_SDK_RETURN_IF_ERROR(fetch(c.source, source));
    // What lies between the elements of a strided weight stays as it is.
    if (c.unpacks()) BP_SDK_RETURN_IF_ERROR(fetch(c.target, target));
    BP_SDK_RETURN_IF_ERROR(convert(c, source.data(), target.data()));
    const Copy back = target.empty() ? Copy{} : Copy{here(target), c.target};
    BP_SDK_RETURN_IF_ERROR(device.copy(back, order));
    // Host memory stays until the signal, which tells the host what failed.
    if (order.signal() != nullptr) static_cast<void>(order.signal()->wait(UINT64_MAX));
    return {};
  }

  // The layouts of a graph's inputs: weights that only products read, in the format of this name.
  std::vector<bp_layout> choose(const Subgraph& graph, const CompileOptions& options,
                                std::uint64_t name) const {
    return choose_weight_layouts(graph, options,
                                 [&](const NodeView& node, std::size_t operand, bool turned) {
                                   return wanted(node, operand, turned, name);
                                 });
  }
  // As WeightLayout.
  std::uint64_t wanted(const NodeView& node, std::size_t operand, bool turned,
                       std::uint64_t name) const {
    const auto product = find_product(node);
    if (!product || product->weight != operand) return 0;
    const std::uint64_t id = name * 2 + (product->transposed != turned ? 1 : 0);
    const auto format = find({BP_LAYOUT_OPAQUE, 0, id});
    return format != nullptr && takes(*format, node.operand(operand).dtype()) ? id : 0;
  }

  // `plain` where aten.linear, aten.mm and aten.addmm take weights in tiles too: those of tiles are
  // computed by `multiply`, all others by the row's own kernel.
  std::vector<KernelRow> rows(std::vector<KernelRow> plain, const MultiplyTiles& multiply) const {
    for (KernelRow& row : plain)
      if (row.op == "aten.linear" || row.op == "aten.mm" || row.op == "aten.addmm")
        row.make_packed = [tiles = *this,
                           multiply](const StepContext& step) -> Result<std::unique_ptr<Kernel>> {
          const auto product = find_product(step.node());
          const auto format = product ? tiles.find(step.operand(product->weight).layout) : nullptr;
          if (format == nullptr || step.operand(product->weight).elements() == 0)
            return Status(BP_UNSUPPORTED, "operands in tiles where the product reads none");
          return std::make_unique<detail::TiledKernel>(multiply, format, *product, step);
        };
    return plain;
  }

 private:
  static bool is_transposed(const bp_layout& layout) { return (layout.layout_id & 1) != 0; }
  static bool takes(const TileFormat& format, bp_dtype dtype) {
    return std::any_of(format.dtypes.begin(), format.dtypes.end(),
                       [&](bp_dtype known) { return known == dtype; }) &&
           (!format.code || dtype == kFloat32);
  }
  // Sizes whose tiles can be counted in 64 bits.
  static bool is_possible(const std::vector<std::int64_t>& dims) {
    constexpr double kMost = 1e15;
    return dims[0] >= 0 && dims[1] >= 0 &&
           (static_cast<double>(dims[0]) + 1e4) * (static_cast<double>(dims[1]) + 1e4) < kMost;
  }
  std::shared_ptr<const TileFormat> find(const bp_layout& layout) const {
    if (layout.kind == BP_LAYOUT_OPAQUE)
      for (const auto& format : formats_)
        if (format->name == layout.layout_id / 2) return format;
    return nullptr;
  }

  std::vector<std::shared_ptr<const TileFormat>> formats_;
};

}  // namespace backplane::sdk
