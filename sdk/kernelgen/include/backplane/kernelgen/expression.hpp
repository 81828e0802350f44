// The expressions that kernels are made of: a hash-consed graph of typed scalars. A kernel gives
// the axes that they range over (kernel.hpp), a printer turns them into a language.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

namespace backplane::kernelgen {

// What is computed with. Truth values are 0 or 1.
enum class Type : std::uint8_t { kF32, kF64, kI32, kI64, kBool };
// What lies in memory.
enum class Storage : std::uint8_t { kF32, kF64, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

// The type in which elements of a storage are computed: halves in float32, small integers in int32.
Type compute_type(Storage storage);
std::int64_t storage_bytes(Storage storage);
inline bool is_float(Type type) { return type == Type::kF32 || type == Type::kF64; }
inline bool is_float(Storage storage) { return is_float(compute_type(storage)); }
// The wider of two types, as PyTorch promotes dtypes of one rank.
Type promote(Type a, Type b);

enum class Op : std::uint8_t {
  kConstant,
  kAxis,      // index: which
  kLoad,      // index: tensor, a: offset in elements
  kValue,     // index: a number passed by value
  kExternal,  // a variable of the surrounding text (epilogues)
  kCast,
  kNarrow,  // index: storage to whose width an integer wraps, or a float is rounded
  kSelect,  // a ? b : c
  kReduce,  // index: Reduction, a: body; over all loop axes of the kernel
  // unary
  kNeg,
  kAbs,
  kNot,     // of truth values
  kBitNot,  // of integers
  kSignbit,
  kExp,
  kExpNormal,  // zero where the result would be subnormal: beside terms that are near one
  kExpm1,
  kLog,
  kLog1p,
  kTanh,
  kErf,
  kNormalCdf,  // float32 only
  kSigmoid,
  kSqrt,
  kRsqrt,
  kFloor,
  kCeil,
  kTrunc,
  kRound,  // half to even
  kSin,
  kCos,
  kTan,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kAsinh,
  kAcosh,
  kAtanh,
  kExp2,
  kLog2,
  kLog10,
  kErfc,
  kLgamma,
  // binary
  kAdd,
  kSub,
  kMul,
  kDiv,  // floats: quotient; integers: truncated, 0 where the divisor is 0
  kMod,  // integers: remainder of kDiv
  kMin,  // NaN of either operand survives
  kMax,
  kLt,
  kLe,
  kEq,
  kNe,
  kAnd,
  kOr,
  kXor,
  kShl,
  kShr,
  kPow,
  kAtan2,
  kFmod,
};
inline bool is_unary(Op op) { return op >= Op::kNeg && op < Op::kAdd; }
inline bool is_binary(Op op) { return op >= Op::kAdd; }

// kTop: kMax where NaN may be lost, because it comes out elsewhere.
enum class Reduction : std::uint8_t { kSum, kProduct, kMax, kMin, kTop, kArgMax, kArgMin };

using Expr = std::int32_t;
inline constexpr Expr kNoExpr = -1;

struct Node {
  Op op = Op::kConstant;
  Type type = Type::kF32;
  Expr a = kNoExpr, b = kNoExpr, c = kNoExpr;
  std::int32_t index = 0;
  std::int64_t integer = 0;  // constants of integer type
  double real = 0;           // constants of float type
};

// What a reduction of elements of the type starts from, and gives of none: a constant. Of
// positions, that of the elements they are sought by.
Node identity(Reduction how, Type type);

// Owns the nodes. Equal nodes are one; constants fold; index arithmetic is simplified by ranges.
class Expressions {
 public:
  // `extents` of all axes; index arithmetic is in int32 unless `wide_index`.
  explicit Expressions(std::vector<std::int64_t> extents = {}, bool wide_index = false)
      : extents_(std::move(extents)), index_type_(wide_index ? Type::kI64 : Type::kI32) {}

  const Node& node(Expr e) const { return nodes_[static_cast<std::size_t>(e)]; }
  Type type(Expr e) const { return node(e).type; }
  // Computed from elements of tensors, not from axes and constants alone.
  bool is_data(Expr e) const { return is_data_[static_cast<std::size_t>(e)]; }
  std::size_t size() const { return nodes_.size(); }
  Type index_type() const { return index_type_; }
  std::span<const std::int64_t> extents() const { return extents_; }

  Expr constant(Type type, double value);
  Expr integer(Type type, std::int64_t value);
  // One that int32 does not hold makes the arithmetic around it wide.
  Expr index(std::int64_t value) {
    const bool fits = value >= INT32_MIN && value <= INT32_MAX;
    return integer(fits ? index_type_ : Type::kI64, value);
  }
  Expr axis(std::size_t which);
  Expr load(std::size_t tensor, Storage storage, Expr offset);
  Expr value(std::size_t which, Storage storage);
  Expr external(Type type, std::size_t which = 0);
  Expr cast(Expr e, Type to);
  // What a storage of up to 16 bits keeps of a number; that number where it is none of these.
  Expr narrow(Expr e, Storage storage);
  Expr select(Expr condition, Expr yes, Expr no);
  Expr reduce(Reduction how, Expr body);
  Expr unary(Op op, Expr a);
  // Operands are promoted to a common type.
  Expr binary(Op op, Expr a, Expr b);

  // As it stands, but for its operands, which are of this graph.
  Expr copy(const Node& node) { return add_node(node); }

  Expr add(Expr a, Expr b) { return binary(Op::kAdd, a, b); }
  Expr sub(Expr a, Expr b) { return binary(Op::kSub, a, b); }
  Expr mul(Expr a, Expr b) { return binary(Op::kMul, a, b); }
  Expr div(Expr a, Expr b) { return binary(Op::kDiv, a, b); }
  Expr both(Expr a, Expr b) { return binary(Op::kAnd, a, b); }
  // Sum of index[i] * strides[i].
  Expr offset(std::span<const Expr> index, std::span<const std::int64_t> strides);
  // For loads whose index may be outside: 0 <= e < limit, and e brought inside.
  Expr inside(Expr e, std::int64_t limit);
  Expr clamped(Expr e, std::int64_t limit);

  // Largest value of an index expression known not to be negative; -1 where unknown.
  std::int64_t bound(Expr e) const;
  // Change of an index expression along one axis, if it is the same everywhere.
  bool stride(Expr e, std::size_t axis, std::int64_t& out_stride) const;
  bool depends(Expr e, std::size_t axis) const;

 private:
  bool is_nan(Expr e) const;  // a constant
  Expr add_node(const Node& node);
  Expr fold_integers(Op op, Type type, Expr a, Expr b);
  Expr fold_floats(Op op, Type type, Expr a, Expr b);

  std::vector<std::int64_t> extents_;
  Type index_type_;
  std::vector<Node> nodes_;
  std::vector<bool> is_data_;  // by node
  std::map<std::tuple<Op, Type, Expr, Expr, Expr, std::int32_t, std::int64_t, std::uint64_t>, Expr>
      known_;
};

}  // namespace backplane::kernelgen
