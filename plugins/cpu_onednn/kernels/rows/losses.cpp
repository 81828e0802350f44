// Losses with a reduction: of the difference of two tensors.
#include <algorithm>
#include <cmath>

#include "kernels/kernel_registry.h"
#include "kernels/rows/block.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;

enum Reduction : std::int64_t { kNone = 0, kMean = 1, kSum = 2 };

// f(difference) of each element, in double; all of them, or their sum or mean.
template <class F>
MadeKernel make_loss(const StepContext& context, F f) {
  const std::int64_t reduction = context.int_or("reduction", kMean);
  const sdk::TensorSpec input = context.operand(0), target = context.operand(1),
                        out = context.result();
  Walk walk(input.dims, {input.strides, broadcast_strides(target, input.dims)});
  if (reduction == kNone)
    walk = Walk(out.dims, {broadcast_strides(input, out.dims), broadcast_strides(target, out.dims),
                           out.strides});
  walk.merge();
  const Type types[3] = {known_type(input.dtype), known_type(target.dtype), known_type(out.dtype)};
  const std::int64_t count = input.elements();
  return make_kernel([=, a = types[0], b = types[1], c = types[2]](const KernelCall& call) {
    constexpr std::int64_t kBlock = 256;
    const LoadFunction load_a = load_function(a, Domain::kF64),
                       load_b = load_function(b, Domain::kF64);
    const StoreFunction store = store_function(c, Domain::kF64);
    double total = 0;
    if (product(walk.dims) != 0) {
      double x[kBlock], y[kBlock];
      RowCursor<3> at(walk, 0);
      for (std::int64_t r = 0; r < walk.rows(); ++r, at.next())
        for (std::int64_t i = 0; i < walk.inner(); i += kBlock) {
          const std::int64_t n = std::min(kBlock, walk.inner() - i);
          load_a(x, call.operands[0] + (at.offset(0) + i * walk.inner_stride(0)) * bytes_of(a),
                 walk.inner_stride(0), n);
          load_b(y, call.operands[1] + (at.offset(1) + i * walk.inner_stride(1)) * bytes_of(b),
                 walk.inner_stride(1), n);
          for (std::int64_t k = 0; k < n; ++k) x[k] = f(x[k] - y[k]);
          if (reduction == kNone) {
            store(call.results[0] + (at.offset(2) + i * walk.inner_stride(2)) * bytes_of(c),
                  walk.inner_stride(2), x, n);
          } else {
            for (std::int64_t k = 0; k < n; ++k) total += x[k];
          }
        }
    }
    if (reduction == kNone) return;
    if (reduction == kMean) total /= static_cast<double>(count);
    store(call.results[0], 1, &total, 1);
  });
}

MadeKernel mse(const StepContext& context) {
  return make_loss(context, [](double d) { return d * d; });
}
MadeKernel smooth_l1(const StepContext& context) {
  const double beta = context.node().real_or("beta", 1);
  return make_loss(context, [beta](double d) {
    const double a = std::abs(d);
    return a < beta ? 0.5 * a * a / beta : a - 0.5 * beta;
  });
}
MadeKernel huber(const StepContext& context) {
  const double delta = context.node().real_or("delta", 1);
  return make_loss(context, [delta](double d) {
    const double a = std::abs(d);
    return a <= delta ? 0.5 * a * a : delta * (a - 0.5 * delta);
  });
}
std::optional<sdk::Refusal> refuse_broadcast(const sdk::NodeView& node) {
  const auto a = node.operand(0).dims(), b = node.operand(1).dims();
  if (!is_float(*type_of(node.result().dtype())))
    return refusal(BP_REFUSED_DTYPE, "floating point results only");
  return std::equal(a.begin(), a.end(), b.begin(), b.end())
             ? std::nullopt
             : refusal(BP_REFUSED_SHAPE, "a target of the input's sizes only");
}

constexpr KernelRow kRows[] = {
    {"aten.mse_loss", mse, refuse_broadcast},
    {"aten.smooth_l1_loss", smooth_l1, refuse_broadcast},
    {"aten.huber_loss", huber, refuse_broadcast},
};

}  // namespace

KernelRows loss_kernels() { return kRows; }

}  // namespace backplane::onednn
