// Tensors made from numbers.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernel_registry.h"
#include "kernels/movement/strided_copy.h"
#include "kernels/rows/block.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::StepContext;

// The bytes of a number as an element of `type`.
std::uint64_t element_of(Type type, double real, std::int64_t integer) {
  std::uint64_t bits = 0;
  if (is_float(type)) {
    store_function(type, Domain::kF64)(&bits, 1, &real, 1);
  } else {
    store_function(type, Domain::kI64)(&bits, 1, &integer, 1);
  }
  return bits;
}
struct Number {
  double real = 0;
  std::int64_t integer = 0;
};
Number number(const StepContext& context, std::string_view name, double fallback) {
  const bp_attribute* a = context.node().attribute(name);
  if (a == nullptr) return {fallback, static_cast<std::int64_t>(fallback)};
  if (a->kind == BP_ATTRIBUTE_FLOAT) return {a->real, static_cast<std::int64_t>(a->real)};
  const std::int64_t i = context.int_or(name, 0);
  return {static_cast<double>(i), i};
}

MadeKernel fill(const StepContext& context, Number n) {
  const auto& out = context.result();
  const Type type = known_type(out.dtype);
  if (type == Type::kBool && n.real != 0) n.integer = 1;
  const std::uint64_t value = element_of(type, n.real, n.integer);
  return make_kernel([out, value](const sdk::KernelCall& call) {
    strided_fill(out.dims, out.strides, sdk::element_bytes(out.dtype), call.results[0], value);
  });
}
MadeKernel zeros(const StepContext& context) { return fill(context, {0, 0}); }
MadeKernel ones(const StepContext& context) { return fill(context, {1, 1}); }
MadeKernel full(const StepContext& context) {
  return fill(context, number(context, "fill_value", 0));
}
MadeKernel scalar_tensor(const StepContext& context) {
  return fill(context, number(context, "s", 0));
}
MadeKernel fill_scalar(const StepContext& context) {
  return fill(context, number(context, "value", 0));
}

// aten.fill.Tensor: self, value.
MadeKernel fill_tensor(const StepContext& context) {
  const auto& out = context.result();
  const Type from = known_type(context.operand(1).dtype), to = known_type(out.dtype);
  return make_kernel([=](const sdk::KernelCall& call) {
    std::uint64_t value = 0;
    if (from == to) {
      std::memcpy(&value, call.operands[1], static_cast<std::size_t>(bytes_of(from)));
    } else {
      const Domain d = is_float(from) ? Domain::kF64 : Domain::kI64;
      std::uint64_t wide = 0;
      load_function(from, d)(&wide, call.operands[1], 1, 1);
      store_function(to, d)(&value, 1, &wide, 1);
    }
    strided_fill(out.dims, out.strides, bytes_of(to), call.results[0], value);
  });
}

MadeKernel arange(const StepContext& context) {
  const Number start = number(context, "start", 0), step = number(context, "step", 1);
  const auto& out = context.result();
  const Type type = known_type(out.dtype);
  // Of integers, PyTorch cuts start and step to integers first.
  const Domain d = is_float(type) ? Domain::kF64 : Domain::kI64;
  return make_kernel([=, store = store_function(type, d)](const sdk::KernelCall& call) {
    const std::int64_t n = out.elements(), size = bytes_of(type);
    const std::int64_t stride = out.dims.empty() ? 1 : out.strides[0];
    for (std::int64_t i = 0; i < n; ++i) {
      const double r = start.real + static_cast<double>(i) * step.real;
      const std::int64_t k = start.integer + i * step.integer;
      store(call.results[0] + i * stride * size, 1,
            d == Domain::kF64 ? static_cast<const void*>(&r) : static_cast<const void*>(&k), 1);
    }
  });
}

// What a float type holds of a number.
double held(Type type, double v) {
  const auto single = static_cast<float>(v);
  if (type == Type::kF64) return v;
  if (type == Type::kBF16) return static_cast<double>(to_float(to_bfloat16(single)));
  return static_cast<double>(type == Type::kF16 ? to_float(to_float16(single)) : single);
}

MadeKernel linspace(const StepContext& context) {
  const auto& out = context.result();
  const Type type = known_type(out.dtype);
  // As PyTorch: every number on the way is one of the result's type, the count and the place too.
  // Integers go in float64.
  const auto in_type = [type](double v) { return is_integral(type) ? v : held(type, v); };
  const auto end_at = [&](std::string_view name) {
    const double v = number(context, name, 0).real;
    return is_integral(type) ? std::trunc(v) : held(type, v);
  };
  const double start = end_at("start"), end = end_at("end");
  return make_kernel([=](const sdk::KernelCall& call) {
    const std::int64_t n = out.elements();
    const auto part = [&](std::int64_t i) { return in_type(static_cast<double>(i)); };
    const double step = n > 1 ? in_type(in_type(end - start) / part(n - 1)) : 0;
    for (std::int64_t i = 0; i < n; ++i) {
      // From the nearer end.
      double v = i < n / 2 || n == 1 ? start + in_type(step * part(i))
                                     : end - in_type(step * part(n - 1 - i));
      if (is_integral(type)) v = std::trunc(v);
      store_function(type, Domain::kF64)(call.results[0] + i * out.strides[0] * bytes_of(type), 1,
                                         &v, 1);
    }
  });
}

MadeKernel eye(const StepContext& context) {
  const auto& out = context.result();
  const std::uint64_t one = element_of(known_type(out.dtype), 1, 1);
  return make_kernel([=](const sdk::KernelCall& call) {
    const std::int64_t size = sdk::element_bytes(out.dtype);
    strided_fill(out.dims, out.strides, size, call.results[0], 0);
    strided_fill({std::min(out.dims[0], out.dims[1])}, {out.strides[0] + out.strides[1]}, size,
                 call.results[0], one);
  });
}

constexpr KernelRow kRows[] = {
    {"aten.zeros", zeros},
    {"aten.zeros_like", zeros},
    {"aten.new_zeros", zeros},
    {"aten.ones", ones},
    {"aten.ones_like", ones},
    {"aten.new_ones", ones},
    {"aten.empty.memory_format", zeros},
    {"aten.empty_like", zeros},
    {"aten.new_empty", zeros},
    {"aten.empty_strided", zeros},
    {"aten.new_empty_strided", zeros},
    {"aten.empty_permuted", zeros},
    {"aten.full", full},
    {"aten.full_like", full},
    {"aten.new_full", full},
    {"aten.scalar_tensor", scalar_tensor},
    {"aten.fill.Scalar", fill_scalar},
    {"aten.fill.Tensor", fill_tensor},
    {"aten.zero", zeros},
    {"aten.arange", arange},
    {"aten.arange.start", arange},
    {"aten.arange.start_step", arange},
    {"aten.linspace", linspace},
    {"aten.eye", eye},
    {"aten.eye.m", eye},
};

}  // namespace

KernelRows factory_kernels() { return kRows; }

}  // namespace backplane::onednn
