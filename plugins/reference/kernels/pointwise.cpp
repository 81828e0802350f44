#include "kernels/pointwise.h"

#include <algorithm>

namespace backplane::reference {
namespace {

constexpr std::int64_t kBlock = 512;
constexpr std::size_t kArguments = 5;

double text_code(std::string_view text) {
  if (text == "tanh" || text == "trunc") return 1;
  if (text == "floor") return 2;
  return 0;
}

// ATen's result type: tensors with dimensions over 0-d ones over numbers, by category.
struct Promotion {
  Type dimensioned = Type::kNone, scalar = Type::kNone, number = Type::kNone;
  static int category(Type t) {
    if (t == Type::kNone) return -1;
    return t == Type::kBool ? 0 : is_integral(t) ? 1 : is_float(t) ? 2 : 3;
  }
  static Type join(Type higher, Type lower) {
    if (higher == Type::kNone) return lower;
    return category(lower) > category(higher) ? promote(higher, lower) : higher;
  }
  static Type as_default(Type t) {
    if (t == Type::kF64) return Type::kF32;
    return t == Type::kC128 ? Type::kC64 : t;
  }
  Type result() const { return join(dimensioned, join(scalar, as_default(number))); }
};

struct Argument {
  Tensor tensor;  // of the result's dims, when it is one
  bool is_number = false;
  bool rounds = false;  // its type differs from the compute type
  Type rounds_to = Type::kNone;
  double real = 0, imaginary = 0;
  std::int64_t integer = 0;
};

template <class T>
T convert_number(const Argument& a) {
  if constexpr (std::is_same_v<T, std::int64_t>)
    return a.integer;
  else if constexpr (std::is_same_v<T, Complex>)
    return {a.real, a.imaginary};
  else
    return a.real;
}

template <class T>
Params<T> read_params(const Frame& frame, const PointwiseRow& row, Type compute) {
  Params<T> p;
  p.bits = is_integral(compute) ? bits_of_integer(compute) : 64;
  p.compute = compute;
  for (std::size_t i = 0; i < row.params.size() && !row.params[i].name.empty(); ++i) {
    const Attribute* a = frame.attribute(row.params[i].name);
    p.has[i] = a != nullptr;
    if (a && a->kind == BP_ATTRIBUTE_STRING)
      p.value[i] = T(text_code(a->text));
    else
      p.value[i] = frame.scalar<T>(row.params[i].name, static_cast<T>(row.params[i].fallback));
  }
  return p;
}

template <class T>
void run_rows(const Frame& frame, const PointwiseRow& row, RowFunction<T> function,
              std::span<Argument> arguments, Type compute) {
  const Tensor out = frame.out();
  const Params<T> params = read_params<T>(frame, row, compute);
  T buffers[kArguments][kBlock];
  T result[kBlock];
  const T* in[kArguments] = {buffers[0], buffers[1], buffers[2], buffers[3], buffers[4]};
  std::vector<const Shape*> strides = {&out.strides};
  for (std::size_t k = 0; k < arguments.size(); ++k) {
    if (arguments[k].is_number)
      std::fill(buffers[k], buffers[k] + kBlock, convert_number<T>(arguments[k]));
    else
      strides.push_back(&arguments[k].tensor.strides);
  }
  const std::int64_t out_size = bytes_of(out.type);
  for (Rows rows(out.dims, strides, true); rows.more(); rows.next()) {
    for (std::int64_t i = 0; i < rows.length(); i += kBlock) {
      const std::int64_t n = std::min(kBlock, rows.length() - i);
      std::size_t walked = 1;
      for (std::size_t k = 0; k < arguments.size(); ++k) {
        const Argument& a = arguments[k];
        if (a.is_number) continue;
        const std::int64_t at = rows.offset(walked) + i * rows.stride(walked);
        load_row(a.tensor.type, a.tensor.data + at * bytes_of(a.tensor.type), rows.stride(walked),
                 n, buffers[k]);
        if constexpr (std::is_same_v<T, double>)
          if (a.rounds)
            for (std::int64_t j = 0; j < n; ++j)
              buffers[k][j] = round_to(a.rounds_to, buffers[k][j]);
        ++walked;
      }
      function(params, in, result, n);
      store_row(out.type, out.data + (rows.offset(0) + i * rows.stride(0)) * out_size,
                rows.stride(0), n, result);
    }
  }
}

}  // namespace

void run_pointwise(const Frame& frame) {
  const auto& row = *static_cast<const PointwiseRow*>(frame.row().extra);
  const Tensor out = frame.out();
  if (out.data == nullptr || out.elements() == 0) return;

  Argument arguments[kArguments];
  std::size_t count = 0;
  Promotion types;
  // Operands stand in schema order; an argument given as a number is missing among them when the
  // node has fewer operands than the schema.
  std::int64_t next = 0;
  for (; count < kArguments && !row.arguments[count].empty(); ++count) {
    Argument& a = arguments[count];
    const Attribute* number = frame.attribute(row.arguments[count]);
    if (number == nullptr && next < frame.operand_count() && frame.has(next)) {
      a.tensor = frame.in(next);
      Type& tier = frame.constant(next) && a.tensor.dims.empty() ? types.number
                   : a.tensor.dims.empty()                       ? types.scalar
                                                                 : types.dimensioned;
      tier = promote(tier, a.tensor.type);
      ++next;
      continue;
    }
    if (number == nullptr)
      throw KernelError("argument " + std::string(row.arguments[count]) + " is missing");
    if (next < frame.operand_count() && !frame.has(next)) ++next;  // its place is BP_NONE
    a.is_number = true;
    a.real =
        number->kind == BP_ATTRIBUTE_FLOAT ? number->real : static_cast<double>(number->integer);
    a.integer = number->kind == BP_ATTRIBUTE_FLOAT ? to_integer(number->real) : number->integer;
    a.imaginary = number->imaginary;
    const Type type = number->is_complex                   ? Type::kC128
                      : number->kind == BP_ATTRIBUTE_FLOAT ? Type::kF64
                      : number->kind == BP_ATTRIBUTE_BOOL  ? Type::kBool
                                                           : Type::kI64;
    types.number = promote(types.number, type);
  }

  Type compute = row.compute == Compute::kOperands ? types.result() : out.type;
  bool complex = is_complex(compute);
  for (std::size_t k = 0; k < count; ++k) complex = complex || is_complex(arguments[k].tensor.type);
  for (std::size_t k = 0; k < count; ++k) {
    Argument& a = arguments[k];
    // A number meets the halves in float, except where it is compared.
    Type to = compute;
    const bool scalar = a.is_number || a.tensor.dims.empty();
    if (row.compute == Compute::kResult && scalar && (to == Type::kF16 || to == Type::kBF16))
      to = Type::kF32;
    a.rounds_to = to;
    if (a.is_number) {
      a.real = round_to(to, a.real);
      a.imaginary = round_to(to, a.imaginary);
    } else {
      a.rounds = is_float(to) && a.tensor.type != to;
      a.tensor = a.tensor.broadcast(out.dims);
    }
  }
  const std::span<Argument> used(arguments, count);
  if (complex) {
    if (row.complex == nullptr) throw KernelError(BP_UNSUPPORTED, "no complex kernel");
    run_rows<Complex>(frame, row, row.complex, used, compute);
  } else if (is_integral(compute) && row.integer != nullptr) {
    run_rows<std::int64_t>(frame, row, row.integer, used, compute);
  } else {
    run_rows<double>(frame, row, row.real, used, compute);
  }
}

}  // namespace backplane::reference
