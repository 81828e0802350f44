// Functions over blocks of elements: what a row program is made of. One function per operation and
// domain; the vector ones exist per instruction set and are chosen once at load.
#pragma once

#include "tensor.h"

#include <cstdint>

namespace backplane::onednn {

// What registers hold: float32 for all floats of up to 32 bits, double, int64 for integers.
// Booleans are 0 or 1 in whichever domain produced them.
enum class Domain : std::uint8_t { kF32, kF64, kI64 };

inline std::int64_t bytes_of(Domain d) { return d == Domain::kF32 ? 4 : 8; }
inline Domain domain_of(Type t) {
  if (t == Type::kF64) return Domain::kF64;
  return is_float(t) ? Domain::kF32 : Domain::kI64;
}
// Whether memory of a type is what registers of a domain hold.
inline bool same_bits(Type t, Domain d) {
  return (t == Type::kF32 && d == Domain::kF32) || (t == Type::kF64 && d == Domain::kF64) ||
         (t == Type::kI64 && d == Domain::kI64);
}

// Opcode, in groups of one, two and three sources.
// clang-format off
#define BP_UNARY_OPCODES(X)                                                                       \
  X(Copy)                                                                                         \
  X(Neg) X(Abs) X(Sqrt) X(Rsqrt) X(Reciprocal) X(Square) X(Exp) X(Exp2) X(Expm1) X(Log) X(Log2)   \
      X(Log10) X(Log1p) X(Tanh) X(Erf) X(Erfc) X(Sigmoid) X(Silu) X(Gelu) X(GeluTanh) X(Relu)     \
          X(Floor) X(Ceil) X(Trunc) X(Round) X(Sign) X(LogicalNot) X(BitNot) X(Truth) X(IsNan)    \
              X(IsInf) X(Signbit) X(Sin) X(Cos) X(Tan) X(Asin) X(Acos) X(Atan) X(Sinh) X(Cosh)    \
                  X(Asinh) X(Acosh) X(Atanh) X(Lgamma) X(Digamma) X(Erfinv)           \
                      X(ToBF16) X(ToF16) X(ToI32) X(WrapI32) X(WrapI16) X(WrapI8) X(WrapU8)
#define BP_BINARY_OPCODES(X)                                                                       \
  X(Add)                                                                                           \
  X(Sub) X(Mul) X(Div) X(TruncDiv) X(FloorDiv) X(Remainder) X(Fmod) X(Min) X(Max) X(Fmin) X(Fmax)  \
      X(Pow) X(Atan2) X(Hypot) X(Copysign) X(Nextafter) X(Eq) X(Ne) X(Lt) X(Le) X(Gt) X(Ge) X(And) \
          X(Or) X(Xor) X(BitAnd) X(BitOr) X(BitXor) X(ShiftLeft) X(ShiftRight) X(GeluBackward)     \
              X(GeluTanhBackward) X(SiluBackward) X(Xlogy) X(Logaddexp) X(Logaddexp2) X(Gcd)       \
                  X(Heaviside)
// clang-format on

// Normalize: (a - b) * c. Where: a ? b : c. Affine: (a - b) * c * d + e.
// clang-format off
#define BP_TERNARY_OPCODES(X) X(Normalize) X(Where) X(Affine)
// clang-format on

// Of a row, to one value: over a; over a * b; over exp(a - b).
// clang-format off
#define BP_REDUCE_OPCODES(X) X(RowSum) X(RowMax) X(RowMin) X(RowDot) X(RowSumExp)
// clang-format on

// ExpSum: exp(a - b), and its sum to the second target. Moments: the mean, and to the second target
// 1 / sqrt(variance + parameter). Softmax: of the row.
// clang-format off
#define BP_SPECIAL_OPCODES(X) X(ExpSum) X(Moments) X(Softmax)
// clang-format on

enum class Opcode : std::uint8_t {
#define BP_OPCODE(name) k##name,
  BP_UNARY_OPCODES(BP_OPCODE) BP_BINARY_OPCODES(BP_OPCODE) BP_TERNARY_OPCODES(BP_OPCODE)
      BP_REDUCE_OPCODES(BP_OPCODE) BP_SPECIAL_OPCODES(BP_OPCODE)
#undef BP_OPCODE
};

inline bool is_reduce(Opcode op) { return op >= Opcode::kRowSum && op <= Opcode::kRowSumExp; }

// Registers are whole numbers of kLanes elements; a narrow one (a value for a whole row) is kLanes
// copies. `count` is rounded up to kLanes except where a reduction needs the true number.
inline constexpr std::int64_t kLanes = 16;

struct BlockArgs {
  void* target;
  void* second;  // of special operations
  const void* sources[5];
  std::int64_t steps[5];  // 1, or 0 for a narrow source
  std::int64_t count;
  double parameter = 0;
};
using BlockFunction = void (*)(const BlockArgs&);

// n elements between memory of some type and a register of some domain. Strides in elements.
using LoadFunction = void (*)(void* target, const void* source, std::int64_t stride,
                              std::int64_t n);
using StoreFunction = void (*)(void* target, std::int64_t stride, const void* source,
                               std::int64_t n);

// Null where the operation has no meaning in the domain (bit operations of floats).
BlockFunction block_function(Opcode op, Domain domain);
BlockFunction convert_function(Domain to, Domain from);
LoadFunction load_function(Type from, Domain to);
StoreFunction store_function(Type to, Domain from);
// Whether a type has every number of another. Integers count modulo their width, truth values do
// not.
bool holds(Type to, Type from);
// Loads what a type keeps of elements that may be of another: as a conversion before gives them.
class ConvertingLoad {
 public:
  static constexpr std::int64_t kMost = 256;  // elements of a call that converts

  ConvertingLoad(Type from, Type as, Domain to);
  bool converts() const { return convert_ != nullptr; }
  void operator()(void* target, const std::byte* source, std::int64_t stride,
                  std::int64_t n) const {
    if (!converts()) return load_(target, source, stride, n);
    alignas(64) std::byte loaded[kMost * 8], kept[kMost * 8];
    load_(loaded, source, stride, n);
    convert_(kept, 1, loaded, n);
    load_again_(target, kept, 1, n);
  }

 private:
  LoadFunction load_, load_again_ = nullptr;
  StoreFunction convert_ = nullptr;
};
// Copies one value over all lanes of a narrow register.
void splat(Domain domain, void* target, double real, std::int64_t integer);

namespace detail {
// Plain loops for every operation; the vector ones replace those they have.
BlockFunction scalar_function(Opcode op, Domain domain);
}  // namespace detail

}  // namespace backplane::onednn
