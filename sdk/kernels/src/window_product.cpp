#include "window_product.hpp"

#include "channel_product.hpp"
#include "register_tiles.hpp"
#include "text.hpp"

namespace backplane::kernels {
namespace {

constexpr std::int64_t kMostColumns = 3 * kLanes;
constexpr std::int64_t kUnrolledTaps = 9;

// Whether the image itself is in that order.
bool lies_ready(const WindowProduct& p, const Planes& planes) {
  const TensorView& x = p.image;
  for (std::size_t i = 0; i < 2; ++i)
    if (p.window.stride[i] != 1 || p.window.padding[i] != 0) return false;
  return !planes.by_tap && x.storage == Storage::kF32 &&
         x.argument.kind != Argument::kOperandValue && x.dims[2] >= planes.rows &&
         x.dims[3] == planes.pitch && x.strides[3] == 1 && x.strides[2] == x.dims[3] &&
         planes.positions() >= kMostColumns;
}

// Results in tiles that fit in registers: rows of channels by vectors of positions.
struct Tiles {
  // Whichever shape computes least beyond what is asked for.
  Tiles(std::int64_t sums, std::int64_t channels, std::int64_t positions) {
    std::int64_t least = INT64_MAX;
    for (const std::int64_t vectors : {2, 3, 1}) {
      if (vectors > 1 && prefers_one_vector(sums)) continue;
      const std::int64_t most = most_rows(sums, vectors);
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

// The weight in float32: itself, or a dense copy.
Result<Taps> taps_in_float32(Builder& b, const WindowProduct& p) {
  const Taps& w = p.weight;
  if (w.tensor.storage == Storage::kF32 && w.tensor.argument.kind != Argument::kOperandValue)
    return w;
  const Shape& kernel = p.window.kernel;
  const std::int64_t in_width = p.image.dims[1] / p.groups;
  Taps copy;
  copy.tensor = b.scratch(Storage::kF32, {p.groups, p.out_width, in_width, kernel[0], kernel[1]});
  const Shape& strides = copy.tensor.strides;
  copy.group = strides[0];
  copy.row = strides[1];
  copy.channel = strides[2];
  copy.tap = {strides[3], strides[4]};
  Draft d(b, copy.tensor.dims);
  const Shape from = {w.group, w.row, w.channel, w.tap[0], w.tap[1]};
  const Expr at = d.e().add(d.e().offset(d.outer(), from), d.index(w.first));
  d.store(copy.tensor, d.outer(), d.load_at(w.tensor, at));
  BP_SDK_RETURN_IF_ERROR(d.finish());
  return copy;
}

class Text {
 public:
  Text(const WindowProduct& p, const Taps& weight, const Planes& planes, const Draft& epilogue,
       std::int64_t sums)
      : p_(p),
        weight_(weight),
        planes_(planes),
        epilogue_(epilogue),
        taps_(p.window.kernel[0] * p.window.kernel[1]),
        in_width_(p.image.dims[1] / p.groups),
        columns_(planes.positions()),
        tiles_(sums, p.out_width, columns_),
        rows_(tiles_.rows) {}

  std::int64_t tiles() const { return tiles_.count; }
  std::int64_t panels() const { return tiles_.panels; }
  std::int64_t leads() const { return planes_.by_tap ? 1 : p_.image.dims[0]; }
  std::string print() const { return head() + product() + stores() + "}\n"; }

 private:
  std::string head() const {
    std::string s = open_kernel(epilogue_.kernel());
    s += "  const int i0 = (int)BP_ID(0) * " + number(rows_) + ", begin = (int)BP_ID(1) * " +
         number(tiles_.columns()) + ";\n";
    s += "  const int a1 = (int)BP_ID(2) % " + number(p_.groups) + ", lead = (int)BP_ID(2) / " +
         number(p_.groups) + ";\n";
    // The last panel overlaps the one before it rather than to read beyond the image.
    s += "  const int q0 = max(min(begin, " + number(columns_) + " - " + number(tiles_.columns()) +
         "), 0);\n";
    s += "  BP_GLOBAL const float* pa = (BP_GLOBAL const float*)(base_a + offset_a) + (long)a1 * " +
         number(weight_.group) + " + " + number(weight_.first) + ";\n";
    s += "  BP_GLOBAL const float* pb = (BP_GLOBAL const float*)(base_b + offset_b) + (ulong)lead "
         "* " +
         number(planes_.image) + "UL + (ulong)a1 * " + number(planes_.channel * in_width_) +
         "UL + q0;\n";
    for (std::int64_t r = 0; r < rows_; ++r) {
      s += "  BP_GLOBAL const float* p" + number(r) + " = pa + (ulong)min(i0 + " + number(r) +
           ", " + number(p_.out_width - 1) + ") * " + number(weight_.row) + "L;\n ";
      for (std::int64_t v = 0; v < tiles_.vectors; ++v)
        s += " float16 c" + number(r) + "_" + number(v) + " = 0.0f;";
      s += "\n";
    }
    return s;
  }
  std::string step(const std::string& ky, const std::string& kx) const {
    const std::string at = planes_.shift(p_.window, ky, kx);
    const std::string tap =
        ky + " * " + number(weight_.tap[0]) + " + " + kx + " * " + number(weight_.tap[1]);
    std::string s = "    {\n    BP_GLOBAL const float* at = pb + " + at + ";\n   ";
    for (std::int64_t v = 0; v < tiles_.vectors; ++v)
      s += " const float16 b" + number(v) + " = BP_LOAD_F32_16(" + number(v) + ", at);";
    s += "\n";
    for (std::int64_t r = 0; r < rows_; ++r) {
      s += "    { const float a = p" + number(r) + "[k * " + number(weight_.channel) + " + " + tap +
           "];";
      for (std::int64_t v = 0; v < tiles_.vectors; ++v) {
        const std::string c = "c" + number(r) + "_" + number(v);
        s.append(" ").append(c).append(" = BP_FMA((float16)(a), b").append(number(v));
        s.append(", ").append(c).append(");");
      }
      s += " }\n";
    }
    return s + "    }\n";
  }
  std::string product() const {
    const Shape& kernel = p_.window.kernel;
    std::string s = "  for (long k = 0; k < " + number(in_width_) + "; ++k) {\n";
    if (taps_ <= kUnrolledTaps) {
      for (std::int64_t t = 0; t < taps_; ++t)
        s += step(number(t / kernel[1]), number(t % kernel[1]));
    } else {
      s += "  for (int ky = 0; ky < " + number(kernel[0]) + "; ++ky)\n  for (int kx = 0; kx < " +
           number(kernel[1]) + "; ++kx)\n" + step("ky", "kx");
    }
    return s + "    pb += " + number(planes_.channel) + ";\n  }\n";
  }
  std::string stores() const {
    const auto store =
        kernelgen::print_fragment(epilogue_.kernel(), epilogue_.dialect(), 4, kLanes);
    const std::string lanes = number(kLanes), pitch = number(planes_.pitch),
                      width = number(p_.out[1]);
    const std::string next_image =
        planes_.by_tap ? "if (a3 == " + number(planes_.rows) + ") { a3 = 0; ++a0; } " : "";
    std::string s = "  float16 tile[" + number(rows_ * tiles_.vectors) + "];\n";
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t v = 0; v < tiles_.vectors; ++v)
        s += "  tile[" + number(r * tiles_.vectors + v) + "] = c" + number(r) + "_" + number(v) +
             ";\n";
    s += "  for (int r = 0; r < " + number(rows_) + " && i0 + r < " + number(p_.out_width) +
         "; ++r) {\n  const int a2 = i0 + r;\n  for (int v = 0; v < " + number(tiles_.vectors) +
         "; ++v) {\n  const int q = q0 + v * " + lanes + ";\n" + place_of_q() +
         "  const float16 x = tile[r * " + number(tiles_.vectors) +
         " + v];\n  if (q >= begin && a4 + " + lanes + " <= " + width +
         ") {\n  const float16 x0 = x;\n" + store.wide + "  } else {\n  float lane[" + lanes +
         "];\n  vstore16(x, 0, lane);\n  for (int l = 0; l < " + lanes +
         "; ++l) {\n  if (q + l >= "
         "begin && q + l < " +
         number(columns_) + " && a4 < " + width + ") {\n  const float x0 = lane[l];\n" +
         store.narrow + "  }\n  if (++a4 == " + pitch + ") { a4 = 0; ++a3; " + next_image +
         "}\n  }\n  }\n  }\n  }\n";
    return s;
  }
  // Declares a0, a3 and a4: image, row and column.
  std::string place_of_q() const {
    const std::string pitch = number(planes_.pitch), image = number(planes_.image);
    std::string s = planes_.by_tap ? "  int a0 = q / " + image + ", rest = q % " + image + ";\n"
                                   : "  const int a0 = lead, rest = q;\n";
    return s + "  int a3 = rest / " + pitch + ", a4 = rest % " + pitch + ";\n";
  }

  const WindowProduct& p_;
  const Taps& weight_;
  const Planes& planes_;
  const Draft& epilogue_;
  std::int64_t taps_, in_width_;
  std::int64_t columns_;
  Tiles tiles_;
  std::int64_t rows_;
};

}  // namespace

bool can_be_window_product(const Builder& builder, const WindowProduct& p) {
  if (!builder.facts().has_vectors() || p.window.rank() != 2) return false;
  if (kernelgen::compute_type(p.image.storage) != kernelgen::Type::kF32) return false;
  if (product(p.image.dims) == 0 || p.out_width == 0 || product(p.out) == 0) return false;
  return Planes::for_image(p.window, p.out, p.image.dims[1]).image * p.image.dims[0] < INT32_MAX &&
         p.image.argument.kind != Argument::kOperandValue;
}

Status add_window_product(Builder& b, const WindowProduct& p) {
  const bool by_channel = suits_channel_product(p);
  Planes planes = Planes::for_image(p.window, p.out, p.image.dims[1]);
  if (!by_channel && lies_ready(p, planes)) {
    planes.view = p.image;
    planes.channel = p.image.strides[1];
    planes.image = p.image.strides[0];
  } else {
    std::int64_t size = planes.image * p.image.dims[0];
    if (planes.is_sparse() && !by_channel) {
      planes = Planes::for_taps(p.window, p.out, p.image.dims[0]);
      size = planes.channel * p.image.dims[1];
    }
    // The last panel may read beyond the last plane.
    BP_SDK_RETURN_IF_ERROR(fill_planes(b, p.image, p.window, size + kMostColumns, planes));
  }
  auto weight = taps_in_float32(b, p);
  if (!weight.ok()) return weight.status();
  Draft epilogue(b, {p.image.dims[0], p.groups, p.out_width, p.out[0], p.out[1]});
  BP_SDK_RETURN_IF_ERROR(
      p.store(epilogue, epilogue.e().external(kernelgen::Type::kF32), epilogue.outer()));
  std::vector<Argument> arguments = epilogue.arguments();
  arguments.push_back(weight->tensor.argument);
  arguments.push_back(planes.view.argument);
  const std::int64_t sums = b.facts().product_sums;
  if (by_channel) {
    const ChannelProduct made = print_channel_product(p, *weight, planes, epilogue, sums);
    b.launch(kernelgen::name_entry(made.text), std::move(arguments), made.items);
    return {};
  }
  const Text text(p, *weight, planes, epilogue, sums);
  b.launch(kernelgen::name_entry(text.print()), std::move(arguments),
           {static_cast<std::size_t>(text.tiles()), static_cast<std::size_t>(text.panels()),
            static_cast<std::size_t>(text.leads() * p.groups)});
  return {};
}

}  // namespace backplane::kernels
