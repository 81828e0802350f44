#include "kernels/rows/block.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/simd/instruction_set.h"
#include "kernels/simd/processor_loops.h"
#include "kernels/simd/vector_table.h"

namespace backplane::onednn {
namespace {

template <class T>
BP_LOOP T read_element(const T& v) {
  return v;
}
BP_LOOP float read_element(const BFloat16& v) { return Lane::read(v); }
BP_LOOP float read_element(const Float16& v) { return to_float(v); }
BP_LOOP std::uint8_t read_element(const Bool& v) { return v.byte != 0 ? 1 : 0; }

// Saturates NaN and values out of range to the most negative number, as the processor does.
template <class To, class From>
BP_LOOP To number_to(From v) {
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    const auto d = static_cast<double>(v);
    return d >= -0x1p63 && d < 0x1p63 ? static_cast<To>(v) : static_cast<To>(INT64_MIN);
  } else {
    return static_cast<To>(v);
  }
}

template <class M, class R>
struct LoadElements {
  BP_LOOP void run(void* target, const void* source, std::int64_t stride, std::int64_t n) {
    auto* d = static_cast<R*>(target);
    const auto* s = static_cast<const M*>(source);
    if (stride == 0) {
      std::fill_n(d, n, number_to<R>(read_element(*s)));
    } else if (stride != 1) {
      for (std::int64_t i = 0; i < n; ++i) d[i] = number_to<R>(read_element(s[i * stride]));
    } else if constexpr (std::is_same_v<M, R>) {
      std::memcpy(d, s, static_cast<std::size_t>(n) * sizeof *d);
    } else {
      for (std::int64_t i = 0; i < n; ++i) d[i] = number_to<R>(read_element(s[i]));
    }
  }
};

template <class M, class R>
BP_LOOP void store_element(M& to, R from) {
  if constexpr (std::is_same_v<M, BFloat16>) {
    to = to_bfloat16(static_cast<float>(from));
  } else if constexpr (std::is_same_v<M, Float16>) {
    to = to_float16(static_cast<float>(from));
  } else if constexpr (std::is_same_v<M, Bool>) {
    to.byte = from != R{0} ? 1 : 0;
  } else if constexpr (std::is_integral_v<M>) {
    const auto whole = number_to<std::int64_t>(from);
    // The processor makes elements of 32 bits and fewer from one of 32.
    const bool is_out = std::is_floating_point_v<R> && sizeof(M) < sizeof whole &&
                        whole != static_cast<std::int32_t>(whole);
    to = static_cast<M>(is_out ? INT32_MIN : whole);
  } else {
    to = static_cast<M>(from);
  }
}
template <class M, class R>
struct StoreElements {
  BP_LOOP void run(void* target, std::int64_t stride, const void* source, std::int64_t n) {
    auto* d = static_cast<M*>(target);
    const auto* s = static_cast<const R*>(source);
    if (stride != 1) {
      for (std::int64_t i = 0; i < n; ++i) store_element(d[i * stride], s[i]);
    } else if constexpr (std::is_same_v<M, R>) {
      std::memcpy(d, s, static_cast<std::size_t>(n) * sizeof *d);
    } else {
      for (std::int64_t i = 0; i < n; ++i) store_element(d[i], s[i]);
    }
  }
};
template <class To, class From>
struct ConvertElements {
  BP_LOOP void run(const BlockArgs& args) {
    auto* d = static_cast<To*>(args.target);
    const auto* s = static_cast<const From*>(args.sources[0]);
    for (std::int64_t i = 0; i < args.count; i += kLanes, s += args.steps[0] * kLanes)
      for (std::int64_t k = 0; k < kLanes; ++k) d[i + k] = number_to<To>(s[k]);
  }
};

template <class F>
decltype(auto) with_domain(Domain domain, F&& f) {
  switch (domain) {
    case Domain::kF32:
      return f(float{});
    case Domain::kF64:
      return f(double{});
    case Domain::kI64:
      break;
  }
  return f(std::int64_t{});
}

}  // namespace

const VectorTable& vector_table() {
  static const VectorTable& best = *runnable_table(0);
  return best;
}

const VectorTable* runnable_table(std::size_t i) {
  const VectorTable* tables[3] = {};
  std::size_t count = 0;
  if (instruction_set() >= InstructionSet::kAvx512) tables[count++] = &kVectorAvx512;
  if (instruction_set() >= InstructionSet::kAvx2) tables[count++] = &kVectorAvx2;
  tables[count++] = &kVectorBaseline;
  return i < count ? tables[i] : nullptr;
}

BlockFunction block_function(Opcode op, Domain domain) {
  const VectorTable& table = vector_table();
  BlockFunction found = nullptr;
  if (domain == Domain::kF32) {
    found = table.find(op);
    if (found == nullptr) found = table.find_in_library(op);
  } else if (domain == Domain::kF64) {
    found = table.find_doubles_in_library(op);
  }
  return found != nullptr ? found : detail::scalar_function(op, domain);
}

BlockFunction convert_function(Domain to, Domain from) {
  return with_domain(to, [&](auto t) {
    return with_domain(from, [](auto f) -> BlockFunction {
      return processor_loop<ConvertElements<decltype(t), decltype(f)>>();
    });
  });
}

LoadFunction load_function(Type from, Domain to) {
  if (to == Domain::kF32 && from == Type::kBF16) return vector_table().load_bf16;
  if (to == Domain::kF32 && from == Type::kBool) return vector_table().load_bool;
  return with_type(from, [&](auto m) {
    return with_domain(to, [](auto r) -> LoadFunction {
      return processor_loop<LoadElements<decltype(m), decltype(r)>>();
    });
  });
}

StoreFunction store_function(Type to, Domain from) {
  if (from == Domain::kF32 && to == Type::kBF16) return vector_table().store_bf16;
  if (from == Domain::kF32 && to == Type::kBool) return vector_table().store_bool;
  return with_type(to, [&](auto m) {
    return with_domain(from, [](auto r) -> StoreFunction {
      return processor_loop<StoreElements<decltype(m), decltype(r)>>();
    });
  });
}

bool holds(Type to, Type from) {
  if (to == from || to == Type::kF64) return true;
  if (to == Type::kBool) return false;
  if (!is_float(to)) return !is_float(from);
  const std::int64_t bytes = bytes_of(from);
  if (to == Type::kF32) return bytes <= 2;
  return is_integral(from) && bytes == 1;
}

ConvertingLoad::ConvertingLoad(Type from, Type as, Domain to)
    : load_(load_function(from, holds(as, from) ? to : domain_of(from))) {
  if (holds(as, from)) return;
  convert_ = store_function(as, domain_of(from));
  load_again_ = load_function(as, to);
}

void splat(Domain domain, void* target, double real, std::int64_t integer) {
  for (std::int64_t k = 0; k < kLanes; ++k) switch (domain) {
      case Domain::kF32:
        static_cast<float*>(target)[k] = static_cast<float>(real);
        break;
      case Domain::kF64:
        static_cast<double*>(target)[k] = real;
        break;
      case Domain::kI64:
        static_cast<std::int64_t*>(target)[k] = integer;
        break;
    }
}

}  // namespace backplane::onednn
