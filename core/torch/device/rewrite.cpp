#include "core/torch/device/rewrite.h"

#include <ATen/native/TypeProperties.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>

#include <array>
#include <vector>

namespace backplane::device {

namespace {

using at::Tensor;
using torch::jit::Stack;

// PyTorch's kernels compute in float32 between short floats, where a plugin may round each result.
Tensor wide(const c10::IValue& operand) {
  const Tensor& tensor = operand.toTensor();
  return at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}
// The type that the first `count` arguments meet in.
Tensor narrow(const Tensor& result, const Stack& a, std::size_t count) {
  std::vector<Tensor> operands;
  for (std::size_t i = 0; i < count; ++i) operands.push_back(a[i].toTensor());
  return result.to(at::native::result_type(operands));
}

Tensor add_scaled(const Stack& a) {
  return narrow(at::add(wide(a[0]), at::mul(wide(a[1]), wide(a[2]))), a, 2);
}
Tensor subtract_scaled(const Stack& a) {
  return narrow(at::sub(wide(a[0]), at::mul(wide(a[1]), wide(a[2]))), a, 2);
}
Tensor add_product(const Stack& a) {
  const Tensor scaled = at::mul(wide(a[1]), wide(a[3]));
  return narrow(at::add(wide(a[0]), at::mul(scaled, wide(a[2]))), a, 3);
}
Tensor add_quotient(const Stack& a) {
  const Tensor scaled = at::mul(wide(a[1]), wide(a[3]));
  return narrow(at::add(wide(a[0]), at::div(scaled, wide(a[2]))), a, 3);
}
Tensor interpolate(const Stack& a) {
  return narrow(at::lerp(wide(a[0]), wide(a[1]), wide(a[2])), a, 2);
}

constexpr std::array kRewrites{
    Rewrite{"aten.add.Tensor", 2, add_scaled}, Rewrite{"aten.sub.Tensor", 2, subtract_scaled},
    Rewrite{"aten.addcmul", 3, add_product}, Rewrite{"aten.addcdiv", 3, add_quotient},
    Rewrite{"aten.lerp.Scalar", 2, interpolate}};

}  // namespace

const Rewrite* find_rewrite(std::string_view op) {
  for (const Rewrite& one : kRewrites)
    if (one.op == op) return &one;
  return nullptr;
}

}  // namespace backplane::device
