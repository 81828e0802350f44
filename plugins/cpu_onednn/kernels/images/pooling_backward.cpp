// Gradients of pooling over two dims: planes are independent, each is zeroed and added to in float.
// In channels-last memory a unit is all planes of one image, of some of its channels.
#include <algorithm>

#include "kernels/kernel_registry.h"
#include "kernels/movement/dense_memory.h"
#include "kernels/rows/float_rows.h"
#include "kernels/simd/row_loops.h"
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
        in_rows(in[in.size() - 2]),
        in_columns(in[in.size() - 1]),
        out_rows(out[out.size() - 2]),
        out_columns(out[out.size() - 1]) {}
  std::int64_t in() const { return in_rows * in_columns; }
  std::int64_t out() const { return out_rows * out_columns; }
};

bool channels_last(const Shape& dims, const Shape& strides) {
  return dims.size() == 4 && dims[1] > 1 && strides[1] == 1 && dims[2] * dims[3] > 1;
}
Shape channels_last_order(const Shape& dims) {
  return {dims[1] * dims[2] * dims[3], 1, dims[1] * dims[3], dims[1]};
}
// Row-major where empty.
Shape order_of(const StepContext& context, const sdk::TensorSpec& spec) {
  const sdk::TensorSpec& out = context.result();
  return channels_last(out.dims, out.strides) ? channels_last_order(spec.dims) : Shape{};
}

// One unit: `lanes` planes whose elements lie `step` apart (1 and 1, or channels and channels).
struct Unit {
  float* target;  // zeroed
  const float* grad;
  const std::int64_t* indices;
  std::int64_t lanes, target_step, grad_step, index_step;
};

template <class F>
class PlaneKernel : public sdk::Kernel {
 public:
  // body(planes, unit) adds to the target; false: a bad index.
  PlaneKernel(const StepContext& context, std::size_t indices, F body)
      : planes_(context.result().dims, context.operand(0).dims),
        grad_(context, 0, plan_, order_of(context, context.operand(0))),
        out_(context, 0, plan_, order_of(context, context.result())),
        body_(std::move(body)),
        read_(grad_.type()),
        write_(out_.type()) {
    if (indices != SIZE_MAX)
      indices_ = DenseOperand(context, indices, plan_, order_of(context, context.operand(indices)));
    const Shape& dims = context.result().dims;
    if (channels_last(dims, context.result().strides)) channels_ = dims[1];
    units_ = planes_.count / channels_;
    // Images alone may be too few for the team; a vector of channels is the least.
    const std::int64_t team = std::max(team_size(planes_.count, work()), 1);
    if (channels_ > 1 && units_ < team)
      splits_ =
          std::min((team + units_ - 1) / std::max<std::int64_t>(units_, 1), (channels_ + 15) / 16);
    units_ *= splits_;
    parts_ = std::max<std::int64_t>(std::min(team, units_), 1);
    target_room_ = write_.direct() ? 0 : planes_.in() * channels_;
    per_part_ = (target_room_ + (read_.direct() ? 0 : planes_.out() * channels_) + 15) / 16 * 16;
    rooms_ = plan_.take_floats(per_part_ * parts_);
    failed_ = plan_.take(parts_);
  }

  std::uint64_t scratch_bytes() const override { return plan_.bytes(); }

  sdk::Status run(const KernelCall& call) const override {
    if (planes_.count * planes_.in() == 0) return {};
    const std::byte *grad = grad_.get(call), *indices = indices_.get(call);
    std::byte* out = out_.get(call);
    parallel_ranges(parts_, work(), [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        float* room = reinterpret_cast<float*>(call.scratch + rooms_) + part * per_part_;
        bool ok = true;
        for (std::int64_t u = units_ * part / parts_; u < units_ * (part + 1) / parts_; ++u)
          ok = unit(u, grad, indices, out, room) && ok;
        call.scratch[failed_ + static_cast<std::uint64_t>(part)] = std::byte{!ok};
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

  bool unit(std::int64_t u, const std::byte* grad, const std::byte* indices, std::byte* out,
            float* room) const {
    const std::int64_t image = u / splits_, split = u % splits_;
    const std::int64_t first = channels_ * split / splits_;
    const std::int64_t lanes = channels_ * (split + 1) / splits_ - first;
    const std::int64_t in_at = image * planes_.in() * channels_ + first;
    const std::int64_t out_at = image * planes_.out() * channels_ + first;
    Unit unit{room, room + target_room_, nullptr, lanes, lanes, lanes, channels_};
    if (write_.direct()) {
      unit.target = reinterpret_cast<float*>(out) + in_at;
      unit.target_step = channels_;
    }
    if (lanes == unit.target_step)
      std::fill(unit.target, unit.target + planes_.in() * lanes, 0.0F);
    else
      for (std::int64_t i = 0; i < planes_.in(); ++i)
        std::fill(unit.target + i * channels_, unit.target + i * channels_ + lanes, 0.0F);
    bool ok = true;
    if (planes_.out() != 0) {
      if (read_.direct()) {
        unit.grad = reinterpret_cast<const float*>(grad) + out_at;
        unit.grad_step = channels_;
      } else {
        rows(planes_.out(), lanes, [&](std::int64_t i, std::int64_t n) {
          read_(grad, out_at + i * channels_, n, room + target_room_ + i * lanes);
        });
      }
      if (indices) unit.indices = reinterpret_cast<const std::int64_t*>(indices) + out_at;
      ok = body_(planes_, unit);
    }
    if (!write_.direct())
      rows(planes_.in(), lanes, [&](std::int64_t i, std::int64_t n) {
        write_.commit(out, in_at + i * channels_, n, room + i * lanes);
      });
    return ok;
  }
  // Rows of `lanes` elements, as one where they are adjacent.
  template <class G>
  void rows(std::int64_t count, std::int64_t lanes, G&& body) const {
    if (lanes == channels_) return body(0, count * lanes);
    for (std::int64_t i = 0; i < count; ++i) body(i, lanes);
  }

  ScratchPlan plan_;
  Planes planes_;
  DenseOperand grad_, indices_;
  DenseResult out_;
  F body_;
  RowReader read_;
  RowWriter write_;
  std::int64_t channels_ = 1, units_ = 0, splits_ = 1, parts_ = 1, per_part_ = 0, target_room_ = 0;
  std::uint64_t rooms_ = 0, failed_ = 0;
};
template <class F>
MadeKernel plane_kernel(const StepContext& context, std::size_t indices, F body) {
  return std::unique_ptr<sdk::Kernel>(
      std::make_unique<PlaneKernel<F>>(context, indices, std::move(body)));
}

bool scatter_planes(const Planes& planes, const Unit& unit) {
  const std::int64_t size = planes.in();
  bool ok = true;
  if (unit.target_step == 1) {
    for (std::int64_t i = 0; i < planes.out(); ++i) {
      const bool inside = unit.indices[i] >= 0 && unit.indices[i] < size;
      ok = ok && inside;
      if (inside) unit.target[unit.indices[i]] += unit.grad[i];
    }
    return ok;
  }
  for (std::int64_t i = 0; i < planes.out(); ++i) {
    const std::int64_t* index = unit.indices + i * unit.index_step;
    const float* grad = unit.grad + i * unit.grad_step;
    for (std::int64_t c = 0; c < unit.lanes; ++c) {
      const bool inside = index[c] >= 0 && index[c] < size;
      ok = ok && inside;
      if (inside) unit.target[index[c] * unit.target_step + c] += grad[c];
    }
  }
  return ok;
}
MadeKernel max_pool_backward(const StepContext& context) {
  return plane_kernel(context, 2, scatter_planes);
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
      [rows = std::move(rows), columns = std::move(columns), divisor](const Planes& planes,
                                                                      const Unit& unit) {
        const float* grad = unit.grad;
        for (std::int64_t i = 0; i < planes.out_rows; ++i) {
          const Window& row = rows[static_cast<std::size_t>(i)];
          for (std::int64_t j = 0; j < planes.out_columns; ++j, grad += unit.grad_step) {
            const Window& column = columns[static_cast<std::size_t>(j)];
            const float size = divisor != 0 ? static_cast<float>(divisor)
                                            : static_cast<float>(row.size * column.size);
            if (unit.target_step == 1) {
              const float share = *grad / size;
              for (std::int64_t r = row.start; r < row.end; ++r) {
                float* line = unit.target + r * planes.in_columns;
                for (std::int64_t c = column.start; c < column.end; ++c) line[c] += share;
              }
              continue;
            }
            for (std::int64_t r = row.start; r < row.end; ++r)
              for (std::int64_t c = column.start; c < column.end; ++c)
                row_loops().add_row(unit.target + (r * planes.in_columns + c) * unit.target_step,
                                    grad, 1 / size, unit.lanes);
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
