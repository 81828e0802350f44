// Gradients of pooling over two dims: planes are independent, each is zeroed and added to in float.
#include <algorithm>

#include "kernels/dense_memory.h"
#include "kernels/float_rows.h"
#include "kernels/kernel_registry.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;

struct Planes {
  std::int64_t count, in_rows, in_columns, out_rows, out_columns;

  // `in` is what was pooled.
  Planes(const Shape& in, const Shape& out)
      : count(product({in.data(), in.size() - 2})),
        in_rows(in[in.size() - 2]), in_columns(in[in.size() - 1]),
        out_rows(out[out.size() - 2]), out_columns(out[out.size() - 1]) {}
  std::int64_t in() const { return in_rows * in_columns; }
  std::int64_t out() const { return out_rows * out_columns; }
};

// One plane after another; tensors in channels-last memory are turned around them.
template <class F>
class PlaneKernel : public sdk::Kernel {
 public:
  // body(target, grad, second, plane): target is a zeroed plane of floats, grad one of floats;
  // false: a bad index.
  PlaneKernel(const StepContext& context, std::size_t indices, F body)
      : planes_(context.result().dims, context.operand(0).dims),
        grad_(context, 0, plan_), out_(context, 0, plan_), body_(std::move(body)),
        read_(grad_.type()), write_(out_.type()) {
    if (indices != SIZE_MAX) indices_ = DenseOperand(context, indices, plan_);
    parts_ = std::max(team_size(planes_.count, work()), 1);
    per_part_ = (planes_.in() + planes_.out() + 15) / 16 * 16;
    if (!read_.direct() || !write_.direct()) rooms_ = plan_.take_floats(per_part_ * parts_);
    failed_ = plan_.take(parts_);
  }

  std::uint64_t scratch_bytes() const override { return plan_.bytes(); }

  sdk::Status run(const KernelCall& call) const override {
    if (planes_.count * planes_.in() == 0) return {};
    const std::byte *grad = grad_.get(call), *indices = indices_.get(call);
    std::byte* out = out_.get(call);
    std::fill(call.scratch + failed_, call.scratch + failed_ + parts_, std::byte{0});
    parallel_ranges(parts_, work(), [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        float* room = reinterpret_cast<float*>(call.scratch + rooms_) + part * per_part_;
        const std::int64_t last = planes_.count * (part + 1) / parts_;
        for (std::int64_t p = planes_.count * part / parts_; p < last; ++p) {
          const std::int64_t at = p * planes_.in();
          float* target = write_.begin(out, at, room);
          std::fill(target, target + planes_.in(), 0.0F);
          if (planes_.out() != 0 &&
              !body_(planes_, target,
                     read_(grad, p * planes_.out(), planes_.out(), room + planes_.in()),
                     indices ? reinterpret_cast<const std::int64_t*>(indices) + p * planes_.out()
                             : nullptr))
            call.scratch[failed_ + static_cast<std::uint64_t>(part)] = std::byte{1};
          write_.commit(out, at, planes_.in(), target);
        }
      }
    });
    out_.finish(call);
    for (std::int64_t part = 0; part < parts_; ++part)
      if (call.scratch[failed_ + static_cast<std::uint64_t>(part)] != std::byte{0})
        return sdk::Status(BP_INVALID_ARGUMENT, "an index is out of its plane");
    return {};
  }

 private:
  std::int64_t work() const { return planes_.count * (planes_.in() + 4 * planes_.out()); }

  ScratchPlan plan_;
  Planes planes_;
  DenseOperand grad_, indices_;
  DenseResult out_;
  F body_;
  RowReader read_;
  RowWriter write_;
  std::int64_t parts_ = 1, per_part_ = 0;
  std::uint64_t rooms_ = 0, failed_ = 0;
};
template <class F>
MadeKernel plane_kernel(const StepContext& context, std::size_t indices, F body) {
  return std::unique_ptr<sdk::Kernel>(
      std::make_unique<PlaneKernel<F>>(context, indices, std::move(body)));
}

bool scatter_plane(const Planes& planes, float* target, const float* grad,
                   const std::int64_t* indices) {
  const std::int64_t size = planes.in();
  bool ok = true;
  for (std::int64_t i = 0; i < planes.out(); ++i) {
    const std::int64_t at = indices[i];
    if (at < 0 || at >= size) {
      ok = false;
      continue;
    }
    target[at] += grad[i];
  }
  return ok;
}
MadeKernel max_pool_backward(const StepContext& context) {
  return plane_kernel(context, 2, scatter_plane);
}

// The window of one result along one dim.
struct Window {
  std::int64_t start, end;  // inside the plane
  std::int64_t size;        // what it counts in the divisor
};
using Windows = std::vector<Window>;

MadeKernel spread(const StepContext& context, Windows rows, Windows columns, double divisor) {
  return plane_kernel(
      context, SIZE_MAX,
      [rows = std::move(rows), columns = std::move(columns), divisor](
          const Planes& planes, float* target, const float* grad, const std::int64_t*) {
        for (std::int64_t i = 0; i < planes.out_rows; ++i) {
          const Window& row = rows[static_cast<std::size_t>(i)];
          for (std::int64_t j = 0; j < planes.out_columns; ++j, ++grad) {
            const Window& column = columns[static_cast<std::size_t>(j)];
            const float share =
                *grad / (divisor != 0 ? static_cast<float>(divisor)
                                      : static_cast<float>(row.size * column.size));
            for (std::int64_t r = row.start; r < row.end; ++r) {
              float* line = target + r * planes.in_columns;
              for (std::int64_t c = column.start; c < column.end; ++c) line[c] += share;
            }
          }
        }
        return true;
      });
}

MadeKernel average_pool_backward(const StepContext& context) {
  const Shape kernel = context.ints("kernel_size"), given = context.ints("stride"),
              pad = context.ints("padding");
  const Shape& stride = given.empty() ? kernel : given;
  const bool count_padding = context.node().bool_or("count_include_pad", true);
  const auto pick = [](const Shape& s, std::size_t d, std::int64_t fallback) {
    return s.empty() ? fallback : s[std::min(d, s.size() - 1)];
  };
  const Shape &in = context.result().dims, &out = context.operand(0).dims;
  std::array<Windows, 2> windows;
  for (std::size_t d = 0; d < 2; ++d) {
    const std::int64_t size = in[in.size() - 2 + d], padding = pick(pad, d, 0);
    for (std::int64_t o = 0; o < out[out.size() - 2 + d]; ++o) {
      const std::int64_t start = o * pick(stride, d, 1) - padding;
      const std::int64_t end = std::min(start + pick(kernel, d, 1), size + padding);
      const std::int64_t inner = std::max<std::int64_t>(start, 0), outer = std::min(end, size);
      windows[d].push_back({inner, outer, count_padding ? end - start : outer - inner});
    }
  }
  return spread(context, std::move(windows[0]), std::move(windows[1]),
                static_cast<double>(context.int_or("divisor_override", 0)));
}

MadeKernel adaptive_average_pool_backward(const StepContext& context) {
  const Shape &in = context.result().dims, &out = context.operand(0).dims;
  std::array<Windows, 2> windows;
  for (std::size_t d = 0; d < 2; ++d) {
    const std::int64_t size = in[in.size() - 2 + d], count = out[out.size() - 2 + d];
    for (std::int64_t o = 0; o < count; ++o) {
      const std::int64_t start = o * size / count, end = ((o + 1) * size + count - 1) / count;
      windows[d].push_back({start, end, end - start});
    }
  }
  return spread(context, std::move(windows[0]), std::move(windows[1]), 0);
}

std::optional<sdk::Refusal> refuse_pooling(const sdk::NodeView& node) {
  if (!is_f32_or_bf16(node.operand(0).dtype()) || !is_f32_or_bf16(node.result().dtype()))
    return refusal(BP_REFUSED_DTYPE, "gradients of pooling in float32 and bfloat16 only");
  if (node.operand(0).rank() < 3)
    return refusal(BP_REFUSED_SHAPE, "gradients of pooling need three dims or four");
  if (node.op().find("max_pool") != std::string_view::npos &&
      type_of(node.operand(2).dtype()) != Type::kI64)
    return refusal(BP_REFUSED_DTYPE, "indices must be int64");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.max_pool2d_with_indices_backward", max_pool_backward, refuse_pooling},
    {"aten.adaptive_max_pool2d_backward", max_pool_backward, refuse_pooling},
    {"aten.avg_pool2d_backward", average_pool_backward, refuse_pooling},
    {"aten._adaptive_avg_pool2d_backward", adaptive_average_pool_backward, refuse_pooling},
};

}  // namespace

KernelRows pooling_backward_kernels() { return kRows; }

}  // namespace backplane::onednn
