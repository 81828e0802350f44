#include "core/torch/device/rewrite.h"

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>

#include <array>

namespace backplane::device {

namespace {

using torch::jit::Stack;

at::Tensor add_scaled(const Stack& a) {
  return at::add(a[0].toTensor(), at::mul(a[1].toTensor(), a[2].toTensor()));
}
at::Tensor subtract_scaled(const Stack& a) {
  return at::sub(a[0].toTensor(), at::mul(a[1].toTensor(), a[2].toTensor()));
}
at::Tensor add_product(const Stack& a) {
  return at::add(a[0].toTensor(),
                 at::mul(at::mul(a[1].toTensor(), a[3].toTensor()), a[2].toTensor()));
}
at::Tensor add_quotient(const Stack& a) {
  return at::add(a[0].toTensor(),
                 at::div(at::mul(a[1].toTensor(), a[3].toTensor()), a[2].toTensor()));
}
at::Tensor interpolate(const Stack& a) {
  return at::lerp(a[0].toTensor(), a[1].toTensor(), a[2].toTensor());
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
