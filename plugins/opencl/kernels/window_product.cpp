#include "kernels/window_product.h"

namespace backplane::opencl {
namespace {

using kernelgen::Op;

constexpr std::int64_t kLanes = 16, kMostColumns = 3 * kLanes;
constexpr std::int64_t kUnrolledTaps = 9;

std::string number(std::int64_t v) { return std::to_string(v); }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The image as the product reads it: per channel one plane for each phase of the stride, in rows
// of one pitch that holds results and padding alike.
struct Planes {
  TensorView view;
  std::int64_t pitch = 0, plane = 0, channel = 0, image = 0;  // strides in elements
};

Planes plan(const WindowProduct& p) {
  const Window& w = p.window;
  std::int64_t extent[2];
  for (std::size_t i = 0; i < 2; ++i)
    extent[i] = p.out[i] + (w.kernel[i] - 1) * w.dilation[i] / w.stride[i];
  Planes planes;
  planes.pitch = extent[1];
  planes.plane = extent[0] * extent[1];
  planes.channel = planes.plane * w.stride[0] * w.stride[1];
  planes.image = planes.channel * p.image.dims[1];
  return planes;
}

// Whether the image itself is in that order.
bool lies_ready(const WindowProduct& p, const Planes& planes, std::int64_t columns) {
  const TensorView& x = p.image;
  for (std::size_t i = 0; i < 2; ++i)
    if (p.window.stride[i] != 1 || p.window.padding[i] != 0) return false;
  return x.storage == Storage::kF32 && x.argument.kind != Argument::kOperandValue &&
         x.dims[3] == planes.pitch && x.strides[3] == 1 && x.strides[2] == x.dims[3] &&
         columns >= kMostColumns;
}

Status fill_planes(Builder& b, const WindowProduct& p, Planes& planes) {
  const TensorView& x = p.image;
  const Window& w = p.window;
  const std::int64_t rows = planes.plane / planes.pitch;
  // The last panel may read beyond the last plane.
  planes.view = b.scratch(Storage::kF32, {planes.image * x.dims[0] + kMostColumns});
  const Shape strides = {planes.image, planes.channel, planes.pitch, 1};
  if (w.stride[0] == 1 && w.stride[1] == 1 && w.padding[0] >= 0 && w.padding[1] >= 0 &&
      x.dims[2] + w.padding[0] <= rows && x.dims[3] + w.padding[1] <= planes.pitch) {
    BP_SDK_RETURN_IF_ERROR(b.fill_zero(planes.view));
    TensorView inner = planes.view;
    inner.dims = {x.dims[0], x.dims[1], rows, planes.pitch};
    inner.strides = strides;
    Draft d(b, x.dims);
    Indices at = d.outer();
    for (std::size_t i = 0; i < 2; ++i) at[2 + i] = d.e().add(at[2 + i], d.index(w.padding[i]));
    d.store(inner, at, d.load(x, d.outer()));
    return d.finish();
  }
  TensorView all = planes.view;
  all.dims = {x.dims[0], x.dims[1], w.stride[0], w.stride[1], rows, planes.pitch};
  all.strides = sdk::row_major(all.dims);
  Draft d(b, all.dims);
  Expressions& e = d.e();
  const Indices& axes = d.outer();
  Indices at = {axes[0], axes[1]};
  Expr inside = e.integer(kernelgen::Type::kBool, 1);
  for (std::size_t i = 0; i < 2; ++i) {
    const Expr position =
        e.sub(e.add(e.mul(axes[4 + i], d.index(w.stride[i])), axes[2 + i]), d.index(w.padding[i]));
    inside = e.both(inside, e.inside(position, x.dims[2 + i]));
    at.push_back(e.clamped(position, x.dims[2 + i]));
  }
  const Expr value = e.cast(d.load(x, at), kernelgen::Type::kF32);
  d.store(all, axes, e.select(inside, value, e.constant(kernelgen::Type::kF32, 0)));
  return d.finish();
}

// Results in tiles that fit in registers: rows of channels by vectors of positions.
struct Tiles {
  // Whichever shape computes least beyond what is asked for.
  Tiles(std::int64_t channels, std::int64_t positions) {
    constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{2, 12}, {3, 8}, {1, 14}};
    std::int64_t least = INT64_MAX;
    for (const auto& [vectors, most] : kShapes) {
      const std::int64_t heights = ceil_div(channels, most), rows = ceil_div(channels, heights);
      const std::int64_t panels = ceil_div(positions, vectors * kLanes);
      const std::int64_t work = heights * rows * panels * vectors;
      if (work >= least) continue;
      least = work;
      *this = {heights, rows, vectors, panels};
    }
  }
  std::int64_t count, rows, vectors, panels;
  std::int64_t columns() const { return vectors * kLanes; }

 private:
  Tiles(std::int64_t c, std::int64_t r, std::int64_t v, std::int64_t p)
      : count(c), rows(r), vectors(v), panels(p) {}
};

// [groups, channels of results, depth]: the weight itself where it lies so.
Result<TensorView> rows_of_weight(Builder& b, const WindowProduct& p, std::int64_t depth) {
  if (p.rows) return *p.rows;
  const TensorView packed = b.scratch(Storage::kF32, {p.groups, p.out_width, depth});
  Draft d(b, packed.dims);
  const Indices& axes = d.outer();
  d.store(packed, axes, p.weight(d, axes[0], axes[1], axes[2]));
  BP_SDK_RETURN_IF_ERROR(d.finish());
  return packed;
}

class Text {
 public:
  Text(const WindowProduct& p, const Planes& planes, const Draft& epilogue)
      : p_(p),
        planes_(planes),
        epilogue_(epilogue),
        taps_(p.window.kernel[0] * p.window.kernel[1]),
        in_width_(p.image.dims[1] / p.groups),
        columns_((p.out[0] - 1) * planes.pitch + p.out[1]),
        tiles_(p.out_width, columns_),
        rows_(tiles_.rows) {}

  std::int64_t tiles() const { return tiles_.count; }
  std::int64_t panels() const { return tiles_.panels; }
  std::string print() const { return head() + product() + stores() + "}\n"; }

 private:
  // Elements from a result's position to what the tap (ky, kx) reads.
  std::string shift(const std::string& ky, const std::string& kx) const {
    const Window& w = p_.window;
    const std::string y = "(" + ky + " * " + number(w.dilation[0]) + ")",
                      x = "(" + kx + " * " + number(w.dilation[1]) + ")", sy = number(w.stride[0]),
                      sx = number(w.stride[1]);
    return "(" + y + " % " + sy + " * " + sx + " + " + x + " % " + sx + ") * " +
           number(planes_.plane) + " + " + y + " / " + sy + " * " + number(planes_.pitch) + " + " +
           x + " / " + sx;
  }
  std::string head() const {
    const std::int64_t depth = in_width_ * taps_;
    std::string s = "BP_KERNEL BP_ENTRY(" + kernelgen::print_parameters(epilogue_.kernel()) +
                    ", BP_GLOBAL uchar* base_a, ulong offset_a, BP_GLOBAL uchar* base_b, ulong "
                    "offset_b) {\n" +
                    kernelgen::print_declarations(epilogue_.kernel());
    s += "  const int i0 = (int)get_global_id(0) * " + number(rows_) +
         ", begin = (int)get_global_id(1) * " + number(tiles_.columns()) + ";\n";
    s += "  const int a1 = (int)get_global_id(2) % " + number(p_.groups) +
         ", a0 = (int)get_global_id(2) / " + number(p_.groups) + ";\n";
    // The last panel overlaps the one before it rather than to read beyond the image.
    s += "  const int q0 = max(min(begin, " + number(columns_) + " - " + number(tiles_.columns()) +
         "), 0);\n";
    s +=
        "  BP_GLOBAL const float* pa = (BP_GLOBAL const float*)(base_a + offset_a) + (ulong)a1 * " +
        number(p_.out_width * depth) + "UL;\n";
    s +=
        "  BP_GLOBAL const float* pb = (BP_GLOBAL const float*)(base_b + offset_b) + (ulong)a0 * " +
        number(planes_.image) + "UL + (ulong)a1 * " + number(planes_.channel * in_width_) +
        "UL + q0;\n";
    for (std::int64_t r = 0; r < rows_; ++r) {
      s += "  BP_GLOBAL const float* p" + number(r) + " = pa + (ulong)min(i0 + " + number(r) +
           ", " + number(p_.out_width - 1) + ") * " + number(depth) + "UL;\n ";
      for (std::int64_t v = 0; v < tiles_.vectors; ++v)
        s += " float16 c" + number(r) + "_" + number(v) + " = 0.0f;";
      s += "\n";
    }
    return s;
  }
  std::string step(const std::string& at, const std::string& tap) const {
    std::string s = "    {\n    BP_GLOBAL const float* at = pb + " + at + ";\n   ";
    for (std::int64_t v = 0; v < tiles_.vectors; ++v)
      s += " const float16 b" + number(v) + " = vload16(" + number(v) + ", at);";
    s += "\n";
    for (std::int64_t r = 0; r < rows_; ++r) {
      s += "    { const float a = p" + number(r) + "[k + " + tap + "];";
      for (std::int64_t v = 0; v < tiles_.vectors; ++v) {
        const std::string c = "c" + number(r) + "_" + number(v);
        s.append(" ").append(c).append(" = fma((float16)(a), b").append(number(v));
        s.append(", ").append(c).append(");");
      }
      s += " }\n";
    }
    return s + "    }\n";
  }
  std::string product() const {
    const Shape& kernel = p_.window.kernel;
    std::string s =
        "  for (int k = 0; k < " + number(in_width_ * taps_) + "; k += " + number(taps_) + ") {\n";
    if (taps_ <= kUnrolledTaps) {
      for (std::int64_t t = 0; t < taps_; ++t)
        s += step(shift(number(t / kernel[1]), number(t % kernel[1])), number(t));
    } else {
      s += "  for (int ky = 0; ky < " + number(kernel[0]) + "; ++ky)\n  for (int kx = 0; kx < " +
           number(kernel[1]) + "; ++kx)\n" +
           step(shift("ky", "kx"), "ky * " + number(kernel[1]) + " + kx");
    }
    return s + "    pb += " + number(planes_.channel) + ";\n  }\n";
  }
  std::string stores() const {
    const auto store = kernelgen::print_fragment(epilogue_.kernel(), 4, kLanes);
    const std::string lanes = number(kLanes), pitch = number(planes_.pitch),
                      width = number(p_.out[1]);
    std::string s = "  float16 tile[" + number(rows_ * tiles_.vectors) + "];\n";
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t v = 0; v < tiles_.vectors; ++v)
        s += "  tile[" + number(r * tiles_.vectors + v) + "] = c" + number(r) + "_" + number(v) +
             ";\n";
    s += "  for (int r = 0; r < " + number(rows_) + " && i0 + r < " + number(p_.out_width) +
         "; ++r) {\n  const int a2 = i0 + r;\n  for (int v = 0; v < " + number(tiles_.vectors) +
         "; ++v) {\n  const int q = q0 + v * " + lanes + ";\n  int a3 = q / " + pitch +
         ", a4 = q % " + pitch + ";\n  const float16 x = tile[r * " + number(tiles_.vectors) +
         " + v];\n  if (q >= begin && a4 + " + lanes + " <= " + width +
         ") {\n  const float16 x0 = x;\n" + store.wide + "  } else {\n  float lane[" + lanes +
         "];\n  vstore16(x, 0, lane);\n  for (int l = 0; l < " + lanes +
         "; ++l) {\n  if (q + l >= "
         "begin && q + l < " +
         number(columns_) + " && a4 < " + width + ") {\n  const float x0 = lane[l];\n" +
         store.narrow + "  }\n  if (++a4 == " + pitch + ") { a4 = 0; ++a3; }\n  }\n  }\n  }\n  }\n";
    return s;
  }

  const WindowProduct& p_;
  const Planes& planes_;
  const Draft& epilogue_;
  std::int64_t taps_, in_width_;
  std::int64_t columns_;
  Tiles tiles_;
  std::int64_t rows_;
};

}  // namespace

bool suits_window_product(const Builder& builder, const WindowProduct& p) {
  if (builder.schedule().gpu || p.window.rank() != 2) return false;
  // One tap reads every column once: panels of them stay closer together than rows of the image.
  if (product(p.window.kernel) == 1) return false;
  if (kernelgen::compute_type(p.image.storage) != kernelgen::Type::kF32) return false;
  return product(p.image.dims) > 0 && p.out_width > 0 && product(p.out) > 0 &&
         plan(p).image * p.image.dims[0] < INT32_MAX &&
         p.image.argument.kind != Argument::kOperandValue;
}

Status add_window_product(Builder& b, const WindowProduct& p) {
  Planes planes = plan(p);
  const std::int64_t depth = p.image.dims[1] / p.groups * product(p.window.kernel);
  if (lies_ready(p, planes, (p.out[0] - 1) * planes.pitch + p.out[1])) {
    planes.view = p.image;
    planes.channel = p.image.strides[1];
    planes.image = p.image.strides[0];
  } else {
    BP_SDK_RETURN_IF_ERROR(fill_planes(b, p, planes));
  }
  auto weight = rows_of_weight(b, p, depth);
  if (!weight.ok()) return weight.status();
  Draft epilogue(b, {p.image.dims[0], p.groups, p.out_width, p.out[0], p.out[1]});
  BP_SDK_RETURN_IF_ERROR(
      p.store(epilogue, epilogue.e().external(kernelgen::Type::kF32), epilogue.outer()));
  const Text text(p, planes, epilogue);
  std::vector<Argument> arguments = epilogue.arguments();
  arguments.push_back(weight->argument);
  arguments.push_back(planes.view.argument);
  b.launch(kernelgen::name_entry(text.print()), std::move(arguments),
           {static_cast<std::size_t>(text.tiles()), static_cast<std::size_t>(text.panels()),
            static_cast<std::size_t>(p.image.dims[0] * p.groups)});
  return {};
}

}  // namespace backplane::opencl
