#include "window_gradient.hpp"
#include "text.hpp"

namespace backplane::kernels {
namespace {

constexpr std::int64_t kMostTaps = 9;

std::int64_t round_up(std::int64_t v) { return ceil_div(v, kLanes) * kLanes; }

// Elements of one channel that follow each other, and how often they do.
struct Runs {
  TensorView view;
  std::int64_t channel = 0, image = 0;  // strides
};

// Sums that one work-item keeps: channels of the gradient by channels of the image by taps.
struct Sums {
  Sums(std::int64_t in_registers, const WindowGradient& p, std::int64_t out_width,
       std::int64_t in_width)
      : taps(product(p.window.kernel)) {
    // Both factors are vectors, of which the last is read where it is used.
    const std::int64_t most = in_registers + in_registers / 8;
    if (taps > std::min(kMostTaps, most)) taps = p.window.kernel[1];
    chunks = product(p.window.kernel) / taps;
    const std::int64_t side = std::max<std::int64_t>(in_registers / 4, 3);
    channels = std::clamp<std::int64_t>(side / taps, 1, in_width);
    rows = std::clamp<std::int64_t>(std::min(side, most / columns()), 1, out_width);
  }
  std::int64_t columns() const { return channels * taps; }
  std::int64_t taps, chunks, channels = 1, rows = 1;
};

// Without padding and strides, planes of whole vectors are read where they lie.
bool lies_in_vectors(const TensorView& t) {
  return t.storage == Storage::kF32 && t.argument.kind != Argument::kOperandValue &&
         t.strides[3] == 1 && t.strides[2] == t.dims[3] && t.dims[2] * t.dims[3] % kLanes == 0;
}

class Text {
 public:
  Text(std::int64_t in_registers, const WindowGradient& p, const Planes& planes,
       const Runs& gradient, const Runs& image, std::int64_t images, std::int64_t length,
       bool has_gaps, const Draft& epilogue)
      : p_(p),
        planes_(planes),
        gradient_(gradient),
        image_(image),
        images_(images),
        length_(length),
        has_gaps_(has_gaps),
        epilogue_(epilogue),
        out_width_(p.gradient.dims[1] / p.groups),
        in_width_(p.image.dims[1] / p.groups),
        sums_(in_registers, p, out_width_, in_width_) {}

  std::array<std::size_t, 3> items() const {
    return {static_cast<std::size_t>(ceil_div(out_width_, sums_.rows)),
            static_cast<std::size_t>(ceil_div(in_width_, sums_.channels) * sums_.chunks),
            static_cast<std::size_t>(p_.groups)};
  }
  std::string print() const { return head() + product() + stores() + "}\n"; }

 private:
  std::string head() const {
    std::string s = open_kernel(epilogue_.kernel());
    s += "  const int i0 = (int)BP_ID(0) * " + number(sums_.rows) + ", chunk = (int)BP_ID(1) % " +
         number(sums_.chunks) + ", j0 = (int)BP_ID(1) / " + number(sums_.chunks) + " * " +
         number(sums_.channels) + ", a0 = (int)BP_ID(2);\n";
    s +=
        "  BP_GLOBAL const float* pa = (BP_GLOBAL const float*)(base_a + offset_a) + (ulong)a0 * " +
        number(out_width_ * gradient_.channel) + "UL;\n";
    s +=
        "  BP_GLOBAL const float* pb = (BP_GLOBAL const float*)(base_b + offset_b) + (ulong)a0 * " +
        number(in_width_ * image_.channel) + "UL;\n";
    for (std::int64_t r = 0; r < sums_.rows; ++r)
      s += "  BP_GLOBAL const float* p" + number(r) + " = pa + (ulong)min(i0 + " + number(r) +
           ", " + number(out_width_ - 1) + ") * " + number(gradient_.channel) + "UL;\n";
    for (std::int64_t c = 0; c < sums_.channels; ++c)
      s += "  BP_GLOBAL const float* q" + number(c) + " = pb + (ulong)min(j0 + " + number(c) +
           ", " + number(in_width_ - 1) + ") * " + number(image_.channel) + "UL;\n";
    for (std::int64_t r = 0; r < sums_.rows; ++r) {
      s += " ";
      for (std::int64_t k = 0; k < sums_.columns(); ++k) s += " float16 " + sum(r, k) + " = 0.0f;";
      s += "\n";
    }
    return s;
  }
  static std::string sum(std::int64_t r, std::int64_t k) {
    return "c" + number(r) + "_" + number(k);
  }
  std::string product() const {
    std::string s = "  for (int n = 0; n < " + number(images_) +
                    "; ++n) {\n  for (int q = 0; q < " + number(length_) +
                    "; q += " + number(kLanes) + ") {\n   ";
    for (std::int64_t r = 0; r < sums_.rows; ++r)
      s += " const float16 g" + number(r) + " = BP_LOAD_F32_16(0, p" + number(r) + " + q);";
    s += "\n";
    const std::int64_t width = p_.window.kernel[1];
    for (std::int64_t k = 0; k < sums_.columns(); ++k) {
      const std::int64_t t = k % sums_.taps;
      const std::string shift =
          sums_.chunks > 1 ? planes_.shift(p_.window, "chunk", number(t))
                           : planes_.shift(p_.window, number(t / width), number(t % width));
      s += "    { const float16 b = BP_LOAD_F32_16(0, q" + number(k / sums_.taps) + " + (" + shift +
           ") + q);";
      for (std::int64_t r = 0; r < sums_.rows; ++r) {
        const std::string c = sum(r, k);
        s.append(" ").append(c).append(" = BP_FMA(g").append(number(r)).append(", b, ");
        s.append(c).append(");");
      }
      s += " }\n";
    }
    s += "  }\n";
    for (std::int64_t r = 0; r < sums_.rows; ++r)
      s += "  p" + number(r) + " += " + number(gradient_.image) + ";";
    for (std::int64_t c = 0; c < sums_.channels; ++c)
      s += "  q" + number(c) + " += " + number(image_.image) + ";";
    return s + "\n  }\n";
  }
  // Sixteen vectors to the vector of their sums: four times, halves of two become one.
  std::string reduce() const {
    const std::int64_t count = sums_.rows * sums_.columns(), whole = round_up(count);
    std::string s =
        "  float16 tile[" + number(whole) + "];\n  float sums[" + number(whole) + "];\n";
    for (std::int64_t i = 0; i < whole; ++i)
      s += "  tile[" + number(i) +
           "] = " + (i < count ? sum(i / sums_.columns(), i % sums_.columns()) : "0.0f") + ";\n";
    s += "  for (int begin = 0; begin < " + number(whole) + "; begin += " + number(kLanes) +
         ") {\n  const float16* t = tile + begin;\n";
    std::vector<std::string> left;
    for (std::int64_t i = 0; i < kLanes; ++i) left.push_back("t[" + number(i) + "]");
    for (int step = 0; left.size() > 1; ++step) {
      std::vector<std::string> next;
      for (std::size_t i = 0; i < left.size(); i += 2) {
        next.push_back("s" + number(step) + "_" + std::to_string(i / 2));
        s += "  const float16 " + next.back() + " = (float16)(" + left[i] + ".even + " + left[i] +
             ".odd, " + left[i + 1] + ".even + " + left[i + 1] + ".odd);\n";
      }
      left = std::move(next);
    }
    return s + "  vstore16(" + left[0] + ", 0, sums + begin);\n  }\n";
  }
  std::string stores() const {
    const auto store = kernelgen::print_fragment(epilogue_.kernel(), epilogue_.dialect(), 3, 1);
    const std::string channels = number(sums_.channels), taps = number(sums_.taps);
    return reduce() + "  for (int r = 0; r < " + number(sums_.rows) + " && i0 + r < " +
           number(out_width_) + "; ++r)\n  for (int c = 0; c < " + channels + " && j0 + c < " +
           number(in_width_) + "; ++c)\n  for (int t = 0; t < " + taps +
           "; ++t) {\n  const int a1 = i0 + r, a2 = j0 + c, a3 = chunk * " + taps +
           " + t;\n  float x0 = sums[(r * " + channels + " + c) * " + taps + " + t];\n" +
           (has_gaps_ ? sum_without_gaps() : "") + store.narrow + "  }\n";
  }
  // Beside the gradient's rows there are zeros, which times an infinity or NaN of the image spoil
  // the sum of a tap that does not touch it.
  std::string sum_without_gaps() const {
    const std::string width = number(p_.window.kernel[1]), rows = number(planes_.out[0]),
                      columns = number(planes_.out[1]);
    return "  if (x0 != x0) {\n  BP_GLOBAL const float* g = pa + (ulong)a1 * " +
           number(gradient_.channel) + "UL;\n  BP_GLOBAL const float* b = pb + (ulong)a2 * " +
           number(image_.channel) + "UL + (" +
           planes_.shift(p_.window, "(a3 / " + width + ")", "(a3 % " + width + ")") +
           ");\n  x0 = 0.0f;\n  for (int n = 0; n < " + number(p_.image.dims[0]) +
           "; ++n) {\n  float image = 0.0f;\n  for (int y = 0; y < " + rows +
           "; ++y) {\n  const int at = n * " + number(planes_.image) + " + y * " +
           number(planes_.pitch) + ";\n  float row = 0.0f;\n  for (int x = 0; x < " + columns +
           "; ++x) row = BP_FMA(g[at + x], b[at + x], row);\n  image += row;\n  }\n" +
           "  x0 += image;\n  }\n  }\n";
  }

  const WindowGradient& p_;
  const Planes& planes_;
  Runs gradient_, image_;
  std::int64_t images_, length_;
  bool has_gaps_;  // between the gradient's rows, where the image has elements
  const Draft& epilogue_;
  std::int64_t out_width_, in_width_;
  Sums sums_;
};

}  // namespace

bool suits_window_gradient(const Builder& builder, const WindowGradient& p) {
  if (!builder.facts().has_vectors() || p.window.rank() != 2) return false;
  for (const TensorView* t : {&p.image, &p.gradient})
    if (kernelgen::compute_type(t->storage) != kernelgen::Type::kF32 || product(t->dims) == 0)
      return false;
  if (product(p.window.kernel) > kMostTaps && p.window.kernel[1] > kMostTaps) return false;
  const Planes planes = Planes::for_image(p.window, spatial(p.gradient), p.image.dims[1]);
  // Adding up a vector's lanes takes as long as some vectors' products.
  const bool by_channel = p.gradient.dims[1] == p.groups;
  return (by_channel || product(planes.out) * p.image.dims[0] >= 4 * kLanes) &&
         planes.image * p.image.dims[0] * 2 < INT32_MAX &&
         planes.plane * p.gradient.dims[1] * p.image.dims[0] * 2 < INT32_MAX;
}

Status add_window_gradient(Builder& b, const WindowGradient& p) {
  const std::int64_t images = p.image.dims[0], channels = p.image.dims[1],
                     results = p.gradient.dims[1];
  Planes planes = Planes::for_image(p.window, spatial(p.gradient), channels);
  Runs gradient, image;
  const auto is_plain = [&](std::size_t i) {
    return p.window.stride[i] == 1 && p.window.padding[i] == 0 && p.window.kernel[i] == 1;
  };
  std::int64_t runs = images, length = planes.plane;
  bool has_gaps = false;
  if (is_plain(0) && is_plain(1) && lies_in_vectors(p.image) && lies_in_vectors(p.gradient)) {
    image = {p.image, p.image.strides[1], p.image.strides[0]};
    gradient = {p.gradient, p.gradient.strides[1], p.gradient.strides[0]};
  } else {
    // One run of all images for each channel. What lies between a plane's rows is zero in the
    // gradient, and so is what lies behind the planes, where the image has nothing but zeros.
    if (planes.is_sparse() && results / p.groups > 1)
      planes = Planes::for_taps(p.window, planes.out, images);
    runs = 1;
    const std::int64_t plane = planes.rows * planes.pitch;
    has_gaps = plane != product(planes.out);
    length = round_up(images * plane);
    // Behind the last plane taps read beyond it.
    const std::int64_t reach = planes.by_tap ? 0 : plane - planes.positions() + planes.pitch;
    planes.image = plane;
    planes.phase = round_up(length + reach);
    planes.channel = planes.phase * product(planes.by_tap ? p.window.kernel : p.window.stride);
    BP_SDK_RETURN_IF_ERROR(fill_planes(b, p.image, p.window, planes.channel * channels, planes));
    image = {planes.view, planes.channel, 0};
    Planes rows = planes;
    rows.by_tap = false;
    rows.plane = plane;
    rows.phase = rows.channel = length;
    const Window point{{1, 1}, {1, 1}, {0, 0}, {1, 1}};
    BP_SDK_RETURN_IF_ERROR(fill_planes(b, p.gradient, point, length * results, rows));
    gradient = {rows.view, length, 0};
  }
  Draft epilogue(b, {p.groups, results / p.groups, channels / p.groups, product(p.window.kernel)});
  BP_SDK_RETURN_IF_ERROR(
      p.store(epilogue, epilogue.e().external(kernelgen::Type::kF32), epilogue.outer()));
  const Text text(b.facts().product_sums, p, planes, gradient, image, runs, length, has_gaps,
                  epilogue);
  std::vector<Argument> arguments = epilogue.arguments();
  arguments.push_back(gradient.view.argument);
  arguments.push_back(image.view.argument);
  b.launch(kernelgen::name_entry(text.print()), std::move(arguments), text.items());
  return {};
}

}  // namespace backplane::kernels
