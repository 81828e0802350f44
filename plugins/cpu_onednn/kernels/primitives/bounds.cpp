#include "kernels/primitives/bounds.h"

#include <limits>

#include "kernels/simd/processor_loops.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

template <class Element>
struct Between {
  BP_LOOP void run(Element* v, std::int64_t n, float low, float high) {
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = Lane::read(v[i]);
      const float raised = x < low ? low : x;  // NaN is neither below nor above
      Lane::write(v[i], raised > high ? high : raised);
    }
  }
};

}  // namespace

std::optional<Bounds> bounds_of(const sdk::NodeView& node) {
  constexpr float kEndless = std::numeric_limits<float>::infinity();
  const std::string_view op = node.op();
  if (op == "aten.relu") return Bounds{0, kEndless};
  if (op == "aten.relu6") return Bounds{0, 6};
  if (op == "aten.hardtanh") {
    const auto low = static_cast<float>(node.real_or("min_val", -1)),
               high = static_cast<float>(node.real_or("max_val", 1));
    if (low <= high) return Bounds{low, high};
  }
  return std::nullopt;
}

ResultBounds::ResultBounds(const sdk::StepContext& context) {
  const std::size_t last = context.step().nodes.size() - 1;
  if (last == 0) return;
  bounds_ = bounds_of(context.node(last));
  if (!bounds_) return;
  const sdk::TensorSpec& result = context.result();
  is_bfloat16_ = known_type(result.dtype) == Type::kBF16;
  walk_ = Walk(result.dims, {result.strides});
  walk_.sort_by(0);
}

template <class Element>
void ResultBounds::run_as(Element* result) const {
  static const auto dense = processor_loop<Between<Element>>();
  const std::int64_t inner = walk_.inner(), step = walk_.inner_stride(0), rows = walk_.rows();
  const auto piece = [&](Element* v, std::int64_t n) {
    if (step == 1 || n == 1) return dense(v, n, bounds_->low, bounds_->high);
    for (std::int64_t i = 0; i < n; ++i) dense(v + i * step, 1, bounds_->low, bounds_->high);
  };
  if (rows == 1) {
    parallel_ranges(inner, inner, [&](int, std::int64_t begin, std::int64_t end) {
      piece(result + begin * step, end - begin);
    });
    return;
  }
  parallel_ranges(rows, rows * inner, [&](int, std::int64_t begin, std::int64_t end) {
    RowCursor<1> at(walk_, begin);
    for (std::int64_t r = begin; r < end; ++r, at.next()) piece(result + at.offset(0), inner);
  });
}

void ResultBounds::run(std::byte* result) const {
  if (!bounds_) return;
  if (is_bfloat16_)
    run_as(reinterpret_cast<BFloat16*>(result));
  else
    run_as(reinterpret_cast<float*>(result));
}

}  // namespace backplane::onednn
