// Plain loops for every operation in every domain where it has a meaning.
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <type_traits>

#include "kernels/rows/block.h"
#include "kernels/simd/processor_loops.h"

// Of a function of elements: without it, it is not vectorised in the loops around it.
#define BP_INLINED __attribute__((always_inline))

namespace backplane::onednn::detail {
namespace {

template <class T>
inline constexpr bool kReal = std::is_floating_point_v<T>;

// Blocks are whole numbers of kLanes, and a narrow source is kLanes copies: loops of one fixed
// length that the compiler vectorises, for every instruction set. F has no state.
template <class T, class F>
struct Each1 {
  BP_LOOP void run(const BlockArgs& args) {
    auto* d = static_cast<T*>(args.target);
    const auto* a = static_cast<const T*>(args.sources[0]);
    for (std::int64_t i = 0; i < args.count; i += kLanes, a += args.steps[0] * kLanes)
#pragma GCC ivdep
      for (std::int64_t k = 0; k < kLanes; ++k) d[i + k] = static_cast<T>(F{}(a[k]));
  }
};
template <class T, class F>
struct Each2 {
  BP_LOOP void run(const BlockArgs& args) {
    auto* d = static_cast<T*>(args.target);
    const auto* a = static_cast<const T*>(args.sources[0]);
    const auto* b = static_cast<const T*>(args.sources[1]);
    for (std::int64_t i = 0; i < args.count; i += kLanes) {
#pragma GCC ivdep
      for (std::int64_t k = 0; k < kLanes; ++k) d[i + k] = static_cast<T>(F{}(a[k], b[k]));
      a += args.steps[0] * kLanes;
      b += args.steps[1] * kLanes;
    }
  }
};
template <class T, class F>
struct Each3 {
  BP_LOOP void run(const BlockArgs& args) {
    auto* d = static_cast<T*>(args.target);
    const auto* a = static_cast<const T*>(args.sources[0]);
    const auto* b = static_cast<const T*>(args.sources[1]);
    const auto* c = static_cast<const T*>(args.sources[2]);
    for (std::int64_t i = 0; i < args.count; i += kLanes) {
#pragma GCC ivdep
      for (std::int64_t k = 0; k < kLanes; ++k) d[i + k] = F{}(a[k], b[k], c[k]);
      a += args.steps[0] * kLanes;
      b += args.steps[1] * kLanes;
      c += args.steps[2] * kLanes;
    }
  }
};
template <class T, class F>
BlockFunction each1(F) {
  return processor_loop<Each1<T, F>>();
}
template <class T, class F>
BlockFunction each2(F) {
  return processor_loop<Each2<T, F>>();
}
template <class T, class F>
BlockFunction each3(F) {
  return processor_loop<Each3<T, F>>();
}
// Of a row: Join::join over its terms F(a, b), in chains that do not wait for each other.
template <class T, class Join, class F>
struct Fold {
  static constexpr std::int64_t kChains = 32;
  BP_LOOP void run(const BlockArgs& args) {
    const auto* a = static_cast<const T*>(args.sources[0]);
    const auto* b = args.sources[1] ? static_cast<const T*>(args.sources[1]) : a;
    const std::int64_t step = args.sources[1] ? args.steps[1] : 1;
    T lanes[kChains];
    for (T& lane : lanes) lane = Join::template start<T>();
    std::int64_t i = 0;
    if (step == 1)
      for (; i + kChains <= args.count; i += kChains)
        for (std::int64_t l = 0; l < kChains; ++l)
          lanes[l] = Join::join(lanes[l], F{}(a[i + l], b[i + l]));
    for (; i < args.count; ++i) lanes[0] = Join::join(lanes[0], F{}(a[i], b[i * step]));
    for (std::int64_t l = 1; l < kChains; ++l) lanes[0] = Join::join(lanes[0], lanes[l]);
    auto* d = static_cast<T*>(args.target);
    for (std::int64_t k = 0; k < kLanes; ++k) d[k] = lanes[0];
  }
};
struct Adding {
  template <class T>
  static constexpr T start() {
    return 0;
  }
  template <class T>
  BP_LOOP T join(T t, T v) {
    return t + v;
  }
};
struct Largest {
  template <class T>
  static constexpr T start() {
    return kReal<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::min();
  }
  template <class T>
  BP_LOOP T join(T t, T v) {
    return t > v || t != t ? t : v;
  }
};
struct Smallest {
  template <class T>
  static constexpr T start() {
    return kReal<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
  }
  template <class T>
  BP_LOOP T join(T t, T v) {
    return t < v || t != t ? t : v;
  }
};
template <class T, class Join, class F>
BlockFunction fold(F) {
  return processor_loop<Fold<T, Join, F>>();
}

template <class T>
T digamma(T x) {
  if (x == 0) return std::copysign(std::numeric_limits<T>::infinity(), -x);
  double y = static_cast<double>(x), result = 0, shifted = 0;
  if (x < 0) {
    if (x == std::floor(x)) return std::numeric_limits<T>::quiet_NaN();
    // The fraction alone: the tangent's period is 1, and large arguments lose their last bits.
    result -= std::numbers::pi / std::tan(std::numbers::pi * (y - std::round(y)));
    y = 1 - y;
  }
  for (; y < 10; ++y) shifted -= 1 / y;
  const double z = 1 / (y * y);
  double series = 0;
  for (const double term :
       {1.0 / 12, 691.0 / 32760, 1.0 / 132, 1.0 / 240, 1.0 / 252, 1.0 / 120, 1.0 / 12})
    series = z * (term - series);
  return static_cast<T>(result + shifted + std::log(y) - 0.5 / y - series);
}

template <class T>
T erfinv(T v) {
  const double y = static_cast<double>(v);
  if (std::abs(y) > 1) return std::numeric_limits<T>::quiet_NaN();
  if (std::abs(y) == 1) return std::copysign(std::numeric_limits<T>::infinity(), v);
  // Winitzki's estimate, then Newton.
  const double l = std::log1p(-y * y), a = 0.147;
  const double t = 2 / (std::numbers::pi * a) + l / 2;
  double x = std::copysign(std::sqrt(std::sqrt(t * t - l / a) - t), y);
  for (int i = 0; i < 3; ++i)
    x -= (std::erf(x) - y) / (2 / std::sqrt(std::numbers::pi) * std::exp(-x * x));
  return static_cast<T>(x);
}

// Of magnitudes, which the least number has as well; its remainder by -1 is a trap.
template <class T>
T gcd_of(T a, T b) {
  using U = std::make_unsigned_t<T>;
  const auto magnitude = [](T v) { return v < 0 ? U{0} - static_cast<U>(v) : static_cast<U>(v); };
  return static_cast<T>(std::gcd(magnitude(a), magnitude(b)));
}

template <class T>
T remainder_of(T a, T b) {
  if constexpr (kReal<T>) {
    const T r = std::fmod(a, b);
    return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
  } else {
    if (b == 0 || b == -1) return 0;
    const T r = a % b;
    return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
  }
}
template <class T>
T floor_div(T a, T b) {
  if constexpr (kReal<T>) {
    // As PyTorch: fmod based, so that the quotient agrees with the remainder.
    if (b == 0) return a / b;
    const T r = std::fmod(a, b);
    T q = (a - r) / b;
    if (r != 0 && ((b < 0) != (r < 0))) q -= 1;
    if (q == 0) return std::copysign(T{0}, a / b);
    const T down = std::floor(q);
    return q - down > T{0.5} ? down + 1 : down;
  } else {
    if (b == 0) return 0;
    if (b == -1) return -a;
    const T q = a / b;
    return a % b != 0 && ((a < 0) != (b < 0)) ? q - 1 : q;
  }
}
template <class T>
T integer_power(T base, T exponent) {
  if (exponent < 0) return base == 1 ? 1 : (base == -1 ? (exponent % 2 ? -1 : 1) : 0);
  std::uint64_t result = 1, b = static_cast<std::uint64_t>(base);
  for (auto e = exponent; e != 0; e >>= 1, b *= b)
    if (e & 1) result *= b;
  return static_cast<T>(result);
}

template <class T>
BlockFunction real_unary(Opcode op) {
#define BP_REAL(name, expression) \
  case Opcode::k##name:           \
    return each1<T>([](T x) BP_INLINED { return expression; });
  switch (op) {
    BP_REAL(Sqrt, std::sqrt(x))
    BP_REAL(Rsqrt, 1 / std::sqrt(x))
    BP_REAL(Reciprocal, 1 / x)
    BP_REAL(Exp, std::exp(x))
    BP_REAL(Exp2, std::exp2(x))
    BP_REAL(Expm1, std::expm1(x))
    BP_REAL(Log, std::log(x))
    BP_REAL(Log2, std::log2(x))
    BP_REAL(Log10, std::log10(x))
    BP_REAL(Log1p, std::log1p(x))
    BP_REAL(Tanh, std::tanh(x))
    BP_REAL(Erf, std::erf(x))
    BP_REAL(Erfc, std::erfc(x))
    BP_REAL(Sigmoid, 1 / (1 + std::exp(-x)))
    BP_REAL(Silu, x / (1 + std::exp(-x)))
    BP_REAL(Gelu, x * T{0.5} * (1 + std::erf(x * std::numbers::sqrt2_v<T> / 2)))
    BP_REAL(GeluTanh,
            T{0.5} * x * (1 + std::tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x))))
    BP_REAL(Floor, std::floor(x))
    BP_REAL(Ceil, std::ceil(x))
    BP_REAL(Trunc, std::trunc(x))
    BP_REAL(Round, std::nearbyint(x))
    BP_REAL(Signbit, std::signbit(x) ? 1 : 0)
    BP_REAL(Sin, std::sin(x))
    BP_REAL(Cos, std::cos(x))
    BP_REAL(Tan, std::tan(x))
    BP_REAL(Asin, std::asin(x))
    BP_REAL(Acos, std::acos(x))
    BP_REAL(Atan, std::atan(x))
    BP_REAL(Sinh, std::sinh(x))
    BP_REAL(Cosh, std::cosh(x))
    BP_REAL(Asinh, std::asinh(x))
    BP_REAL(Acosh, std::acosh(x))
    BP_REAL(Atanh, std::atanh(x))
    BP_REAL(Lgamma, std::lgamma(x))
    BP_REAL(Digamma, digamma(x))
    BP_REAL(Erfinv, erfinv(x))
    BP_REAL(ToBF16, static_cast<T>(to_float(to_bfloat16(static_cast<float>(x)))))
    BP_REAL(ToF16, static_cast<T>(to_float(to_float16(static_cast<float>(x)))))
    default:
      return nullptr;
  }
#undef BP_REAL
}

template <class T>
inline T magnitude(T x) {
  if constexpr (kReal<T>) return std::abs(x);  // of NaN, too
  return x < 0 ? -x : x;
}
template <class T>
BlockFunction unary(Opcode op) {
#define BP_ANY(name, expression) \
  case Opcode::k##name:          \
    return each1<T>([](T x) BP_INLINED { return expression; });
  switch (op) {
    BP_ANY(Copy, x)
    BP_ANY(Neg, -x)
    BP_ANY(Abs, magnitude(x))
    BP_ANY(Square, x * x)
    BP_ANY(Relu, x < 0 ? T{0} : x)
    BP_ANY(Sign, (x > 0) - (x < 0))
    BP_ANY(LogicalNot, x == 0)
    BP_ANY(Truth, x != 0)
    BP_ANY(IsNan, x != x)
    default:
      break;
  }
  if constexpr (kReal<T>) {
    if (op == Opcode::kIsInf) return each1<T>([](T x) BP_INLINED { return std::isinf(x) ? 1 : 0; });
    return real_unary<T>(op);
  } else {
    switch (op) {
      BP_ANY(IsInf, (static_cast<void>(x), 0))
      BP_ANY(Signbit, x < 0)
      BP_ANY(BitNot, ~x)
      BP_ANY(Floor, x)
      BP_ANY(Ceil, x)
      BP_ANY(Trunc, x)
      BP_ANY(Round, x)
      BP_ANY(ToI32, x == static_cast<std::int32_t>(x) ? x : INT32_MIN)
      BP_ANY(WrapI32, static_cast<std::int32_t>(x))
      BP_ANY(WrapI16, static_cast<std::int16_t>(x))
      BP_ANY(WrapI8, static_cast<std::int8_t>(x))
      BP_ANY(WrapU8, static_cast<std::uint8_t>(x))
      default:
        return nullptr;
    }
  }
#undef BP_ANY
}

template <class T>
BlockFunction real_binary(Opcode op) {
#define BP_REAL(name, expression) \
  case Opcode::k##name:           \
    return each2<T>([](T a, T b) BP_INLINED { return expression; });
  switch (op) {
    BP_REAL(Div, a / b)
    BP_REAL(TruncDiv, std::trunc(a / b))
    BP_REAL(Fmod, std::fmod(a, b))
    BP_REAL(Pow, std::pow(a, b))
    BP_REAL(Atan2, std::atan2(a, b))
    BP_REAL(Hypot, std::hypot(a, b))
    BP_REAL(Copysign, std::copysign(a, b))
    BP_REAL(Nextafter, std::nextafter(a, b))
    BP_REAL(Fmin, std::fmin(a, b))
    BP_REAL(Fmax, std::fmax(a, b))
    BP_REAL(Xlogy, std::isnan(b) ? b : (a == 0 ? T{0} : a * std::log(b)))
    BP_REAL(Logaddexp,
            std::isinf(a) && a == b ? a : std::max(a, b) + std::log1p(std::exp(-std::abs(a - b))))
    BP_REAL(Logaddexp2, std::isinf(a) && a == b
                            ? a
                            : std::max(a, b) + std::log1p(std::exp2(-std::abs(a - b))) *
                                                   std::numbers::log2e_v<T>)
    BP_REAL(GeluBackward, a * (T{0.5} * (1 + std::erf(b * std::numbers::sqrt2_v<T> / 2)) +
                               b * std::exp(T{-0.5} * b * b) * T(0.39894228040143267794)))
    BP_REAL(SiluBackward, a / (1 + std::exp(-b)) * (1 + b * (1 - 1 / (1 + std::exp(-b)))))
    case Opcode::kGeluTanhBackward:
      return each2<T>([](T a, T x) BP_INLINED {
        const T k = T(0.79788456080286535588), c = T(0.044715);
        const T t = std::tanh(k * (x + c * x * x * x));
        return a * T{0.5} * (1 + t + x * (1 - t * t) * k * (1 + 3 * c * x * x));
      });
    default:
      return nullptr;
  }
#undef BP_REAL
}

template <class T>
BlockFunction binary(Opcode op) {
#define BP_ANY(name, expression) \
  case Opcode::k##name:          \
    return each2<T>([](T a, T b) BP_INLINED { return expression; });
  switch (op) {
    BP_ANY(Add, a + b)
    BP_ANY(Sub, a - b)
    BP_ANY(Mul, a * b)
    BP_ANY(FloorDiv, floor_div(a, b))
    BP_ANY(Remainder, remainder_of(a, b))
    BP_ANY(Min, a < b || a != a ? a : b)
    BP_ANY(Max, a > b || a != a ? a : b)
    BP_ANY(Eq, a == b)
    BP_ANY(Ne, a != b)
    BP_ANY(Lt, a < b)
    BP_ANY(Le, a <= b)
    BP_ANY(Gt, a > b)
    BP_ANY(Ge, a >= b)
    BP_ANY(And, a != 0 && b != 0)
    BP_ANY(Or, a != 0 || b != 0)
    BP_ANY(Xor, (a != 0) != (b != 0))
    BP_ANY(Heaviside, a == 0 ? b : (a > 0 ? T{1} : T{0}))
    default:
      break;
  }
  if constexpr (kReal<T>) {
    return real_binary<T>(op);
  } else {
    switch (op) {
      BP_ANY(TruncDiv, b == 0 ? T{0} : (b == -1 ? -a : a / b))
      BP_ANY(Fmod, b == 0 || b == -1 ? T{0} : a % b)
      BP_ANY(Fmin, a < b ? a : b)
      BP_ANY(Fmax, a > b ? a : b)
      BP_ANY(Pow, integer_power(a, b))
      BP_ANY(BitAnd, a & b)
      BP_ANY(BitOr, a | b)
      BP_ANY(BitXor, a ^ b)
      BP_ANY(ShiftLeft, b < 0 || b > 63 ? T{0} : static_cast<T>(static_cast<std::uint64_t>(a) << b))
      BP_ANY(ShiftRight, a >> (b < 0 || b > 63 ? 63 : b))
      BP_ANY(Gcd, gcd_of(a, b))
      default:
        return nullptr;
    }
  }
#undef BP_ANY
}

template <class T>
BlockFunction other(Opcode op) {
  switch (op) {
    case Opcode::kNormalize:
      return each3<T>([](T a, T b, T c) BP_INLINED { return (a - b) * c; });
    case Opcode::kAffine:
      return [](const BlockArgs& g) {
        const T* v[5];
        for (int k = 0; k < 5; ++k) v[k] = static_cast<const T*>(g.sources[k]);
        for (std::int64_t i = 0; i < g.count; ++i)
          static_cast<T*>(g.target)[i] = (v[0][i * g.steps[0]] - v[1][i * g.steps[1]]) *
                                             v[2][i * g.steps[2]] * v[3][i * g.steps[3]] +
                                         v[4][i * g.steps[4]];
      };
    case Opcode::kWhere:
      return each3<T>([](T a, T b, T c) BP_INLINED { return a != 0 ? b : c; });
    case Opcode::kRowSum:
      return fold<T, Adding>([](T a, T) BP_INLINED { return a; });
    case Opcode::kRowDot:
      return fold<T, Adding>([](T a, T b) BP_INLINED { return a * b; });
    case Opcode::kRowMax:
      return fold<T, Largest>([](T a, T) BP_INLINED { return a; });
    case Opcode::kRowMin:
      return fold<T, Smallest>([](T a, T) BP_INLINED { return a; });
    default:
      break;
  }
  if constexpr (kReal<T>) {
    if (op == Opcode::kRowSumExp)
      return fold<T, Adding>([](T a, T b) BP_INLINED { return std::exp(a - b); });
    if (op == Opcode::kMoments)
      return [](const BlockArgs& g) {
        const auto* a = static_cast<const T*>(g.sources[0]);
        const T n = static_cast<T>(g.count);
        T sum = 0, squares = 0, rest = 0;
        for (std::int64_t i = 0; i < g.count; ++i) sum += a[i];
        const T first = sum / n;
        for (std::int64_t i = 0; i < g.count; ++i) {
          squares += (a[i] - first) * (a[i] - first);
          rest += a[i] - first;
        }
        const T shift = rest / n;  // what rounding took from the mean
        const T variance = std::max(squares / n - shift * shift, T{0});
        for (std::int64_t k = 0; k < kLanes; ++k) {
          static_cast<T*>(g.target)[k] = shift == shift ? first + shift : first;
          static_cast<T*>(g.second)[k] = 1 / std::sqrt(variance + static_cast<T>(g.parameter));
        }
      };
    if (op == Opcode::kSoftmax)
      return [](const BlockArgs& g) {
        const auto* a = static_cast<const T*>(g.sources[0]);
        auto* d = static_cast<T*>(g.target);
        T top = -std::numeric_limits<T>::infinity(), total = 0;
        for (std::int64_t i = 0; i < g.count; ++i) top = a[i] > top || a[i] != a[i] ? a[i] : top;
        for (std::int64_t i = 0; i < g.count; ++i) total += d[i] = std::exp(a[i] - top);
        for (std::int64_t i = 0; i < g.count; ++i) d[i] /= total;
      };
    if (op == Opcode::kExpSum)
      return [](const BlockArgs& g) {
        auto* d = static_cast<T*>(g.target);
        const auto* a = static_cast<const T*>(g.sources[0]);
        const T b = *static_cast<const T*>(g.sources[1]);
        T total = 0;
        for (std::int64_t i = 0; i < g.count; ++i) total += d[i] = std::exp(a[i] - b);
        for (std::int64_t k = 0; k < kLanes; ++k) static_cast<T*>(g.second)[k] = total;
      };
  }
  return nullptr;
}

template <class T>
BlockFunction any(Opcode op) {
  if (op <= Opcode::kWrapU8) return unary<T>(op);
  if (op <= Opcode::kHeaviside) return binary<T>(op);
  return other<T>(op);
}

}  // namespace

BlockFunction scalar_function(Opcode op, Domain domain) {
  switch (domain) {
    case Domain::kF32:
      return any<float>(op);
    case Domain::kF64:
      return any<double>(op);
    case Domain::kI64:
      break;
  }
  return any<std::int64_t>(op);
}

}  // namespace backplane::onednn::detail
