#include "channel_product.hpp"
#include "register_tiles.hpp"
#include "text.hpp"

#include <map>

namespace backplane::kernels {
namespace {

constexpr std::int64_t kMostRows = 8, kMostTaps = 64;  // written out one by one

class Text {
 public:
  Text(const WindowProduct& p, const Taps& weight, const Planes& planes, const Draft& epilogue,
       std::int64_t sums)
      : p_(p),
        weight_(weight),
        planes_(planes),
        epilogue_(epilogue),
        blocks_(ceil_div(p.out[0], std::min(kMostRows, most_rows(sums, 1)))),
        rows_(ceil_div(p.out[0], blocks_)),
        panels_(ceil_div(p.out[1], kLanes)) {}

  std::array<std::size_t, 3> items() const {
    return {static_cast<std::size_t>(blocks_ * panels_), static_cast<std::size_t>(p_.out_width),
            static_cast<std::size_t>(p_.image.dims[0] * p_.groups)};
  }
  std::string print() const { return head() + product() + stores() + "}\n"; }

 private:
  std::string head() const {
    std::string s = open_kernel(epilogue_.kernel());
    s += "  const int begin = (int)BP_ID(0) / " + number(panels_) + " * " + number(rows_) +
         ", x0 = (int)BP_ID(0) % " + number(panels_) + " * " + number(kLanes) +
         ", a2 = (int)BP_ID(1);\n";
    s += "  const int a1 = (int)BP_ID(2) % " + number(p_.groups) + ", a0 = (int)BP_ID(2) / " +
         number(p_.groups) + ";\n";
    // The last block overlaps the one before it rather than to read beyond the image.
    s += "  const int y0 = min(begin, " + number(p_.out[0] - rows_) + ");\n";
    s += "  BP_GLOBAL const float* pa = (BP_GLOBAL const float*)(base_a + offset_a) + (long)a1 * " +
         number(weight_.group) + " + (long)a2 * " + number(weight_.row) + " + " +
         number(weight_.first) + ";\n";
    s +=
        "  BP_GLOBAL const float* pb = (BP_GLOBAL const float*)(base_b + offset_b) + (ulong)a0 * " +
        number(planes_.image) + "UL + (ulong)a1 * " + number(planes_.channel) + "UL + y0 * " +
        number(planes_.pitch) + " + x0;\n ";
    for (std::int64_t r = 0; r < rows_; ++r) s += " float16 c" + number(r) + " = 0.0f;";
    return s + "\n";
  }
  std::string product() const {
    const Window& w = p_.window;
    // What is read where, and for which sums: phase, row and column from the block's first position
    // to row and tap.
    std::map<std::array<std::int64_t, 3>, std::vector<std::pair<std::int64_t, std::int64_t>>> reads;
    for (std::int64_t ky = 0; ky < w.kernel[0]; ++ky)
      for (std::int64_t kx = 0; kx < w.kernel[1]; ++kx) {
        const std::int64_t y = ky * w.dilation[0], x = kx * w.dilation[1],
                           phase = y % w.stride[0] * w.stride[1] + x % w.stride[1];
        for (std::int64_t r = 0; r < rows_; ++r)
          reads[{phase, y / w.stride[0] + r, x / w.stride[1]}].emplace_back(r,
                                                                            ky * w.kernel[1] + kx);
      }
    std::string s;
    for (std::int64_t ky = 0; ky < w.kernel[0]; ++ky)
      for (std::int64_t kx = 0; kx < w.kernel[1]; ++kx)
        s += "  const float w" + number(ky * w.kernel[1] + kx) + " = pa[" +
             number(ky * weight_.tap[0] + kx * weight_.tap[1]) + "];\n";
    s += "  const int phase = " + number(planes_.phase) + ", pitch = " + number(planes_.pitch) +
         ";\n";
    for (const auto& [at, uses] : reads) {
      s += "  { const float16 b = BP_LOAD_F32_16(0, pb + " + number(at[0]) + " * phase + " +
           number(at[1]) + " * pitch + " + number(at[2]) + ");";
      for (const auto& [row, tap] : uses) {
        const std::string c = "c" + number(row);
        s.append(" ")
            .append(c)
            .append(" = BP_FMA((float16)(w")
            .append(number(tap))
            .append("), b, ");
        s.append(c).append(");");
      }
      s += " }\n";
    }
    return s;
  }
  std::string stores() const {
    const auto store =
        kernelgen::print_fragment(epilogue_.kernel(), epilogue_.dialect(), 4, kLanes);
    std::string s = "  float16 tile[" + number(rows_) + "];\n";
    for (std::int64_t r = 0; r < rows_; ++r)
      s += "  tile[" + number(r) + "] = c" + number(r) + ";\n";
    return s + "  for (int r = begin - y0; r < " + number(rows_) +
           "; ++r) {\n  const int a3 = y0 + r;\n  int a4 = x0;\n  const float16 x = tile[r];\n" +
           store_vector(store, "a4", p_.out[1], kLanes) + "  }\n";
  }

  const WindowProduct& p_;
  const Taps& weight_;
  const Planes& planes_;
  const Draft& epilogue_;
  std::int64_t blocks_, rows_, panels_;
};

}  // namespace

bool suits_channel_product(const WindowProduct& p) {
  return p.image.dims[1] == p.groups && product(p.window.kernel) <= kMostTaps;
}

ChannelProduct print_channel_product(const WindowProduct& p, const Taps& weight,
                                     const Planes& planes, const Draft& epilogue,
                                     std::int64_t sums) {
  const Text text(p, weight, planes, epilogue, sums);
  return {text.print(), text.items()};
}

}  // namespace backplane::kernels
