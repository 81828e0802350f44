#include <backplane/kernelgen/expression.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace backplane::kernelgen {
namespace {

// To the nearest number of a half, to even between two.
double rounded_to_half(double x, Storage storage) {
  const bool is_bf16 = storage == Storage::kBF16;
  const int digits = is_bf16 ? 8 : 11, lowest = is_bf16 ? -126 : -14, limit = is_bf16 ? 128 : 16;
  if (x == 0 || !std::isfinite(x)) return x;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(x), lowest) - digits + 1);
  const double y = std::nearbyint(x / unit) * unit;
  return std::abs(y) < std::ldexp(1.0, limit)
             ? y
             : std::copysign(std::numeric_limits<double>::infinity(), x);
}

// Wraps around, as that of an element does.
std::int64_t negative(std::int64_t v) {
  return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(v));
}

}  // namespace

Type compute_type(Storage storage) {
  switch (storage) {
    case Storage::kF64:
      return Type::kF64;
    case Storage::kI64:
      return Type::kI64;
    case Storage::kI32:
    case Storage::kI16:
    case Storage::kI8:
    case Storage::kU8:
      return Type::kI32;
    case Storage::kBool:
      return Type::kBool;
    default:
      return Type::kF32;
  }
}

std::int64_t storage_bytes(Storage storage) {
  switch (storage) {
    case Storage::kF64:
    case Storage::kI64:
      return 8;
    case Storage::kF32:
    case Storage::kI32:
      return 4;
    case Storage::kF16:
    case Storage::kBF16:
    case Storage::kI16:
      return 2;
    default:
      return 1;
  }
}

Type promote(Type a, Type b) {
  const auto rank = [](Type t) {
    switch (t) {
      case Type::kBool:
        return 0;
      case Type::kI32:
        return 1;
      case Type::kI64:
        return 2;
      case Type::kF32:
        return 3;
      default:
        return 4;
    }
  };
  return rank(a) >= rank(b) ? a : b;
}

Expr Expressions::add_node(const Node& node) {
  const auto key = std::make_tuple(node.op, node.type, node.a, node.b, node.c, node.index,
                                   node.integer, std::bit_cast<std::uint64_t>(node.real));
  const auto [at, fresh] = known_.try_emplace(key, static_cast<Expr>(nodes_.size()));
  if (fresh) {
    const auto reads = [&](Expr e) { return e != kNoExpr && is_data(e); };
    is_data_.push_back(node.op == Op::kLoad || node.op == Op::kValue || node.op == Op::kReduce ||
                       reads(node.a) || reads(node.b) || reads(node.c));
    nodes_.push_back(node);
  }
  return at->second;
}

Expr Expressions::constant(Type type, double value) {
  if (!is_float(type)) return integer(type, static_cast<std::int64_t>(value));
  Node n;
  n.type = type;
  n.real = type == Type::kF32 ? static_cast<double>(static_cast<float>(value)) : value;
  return add_node(n);
}
Expr Expressions::integer(Type type, std::int64_t value) {
  if (is_float(type)) return constant(type, static_cast<double>(value));
  Node n;
  n.type = type;
  n.integer = type == Type::kBool ? (value != 0) : value;
  if (type == Type::kI32) n.integer = static_cast<std::int32_t>(value);
  return add_node(n);
}
Expr Expressions::axis(std::size_t which) {
  if (extents_[which] == 1) return index(0);  // along none, nothing is stored
  Node n;
  n.op = Op::kAxis;
  n.type = index_type_;
  n.index = static_cast<std::int32_t>(which);
  return add_node(n);
}
Expr Expressions::load(std::size_t tensor, Storage storage, Expr offset) {
  Node n;
  n.op = Op::kLoad;
  n.type = compute_type(storage);
  n.a = offset;
  n.index = static_cast<std::int32_t>(tensor);
  n.integer = static_cast<std::int64_t>(storage);
  return add_node(n);
}
Expr Expressions::value(std::size_t which, Storage storage) {
  Node n;
  n.op = Op::kValue;
  n.type = compute_type(storage);
  n.index = static_cast<std::int32_t>(which);
  n.integer = static_cast<std::int64_t>(storage);
  return add_node(n);
}
Expr Expressions::external(Type type, std::size_t which) {
  Node n;
  n.op = Op::kExternal;
  n.type = type;
  n.index = static_cast<std::int32_t>(which);
  return add_node(n);
}
Expr Expressions::cast(Expr e, Type to) {
  const Node n = node(e);
  if (n.type == to) return e;
  if (n.op == Op::kConstant) {
    if (to == Type::kBool) return integer(to, is_float(n.type) ? n.real != 0 : n.integer != 0);
    return is_float(n.type) ? constant(to, n.real) : integer(to, n.integer);
  }
  if (to == Type::kBool) return binary(Op::kNe, e, integer(n.type, 0));
  Node out;
  out.op = Op::kCast;
  out.type = to;
  out.a = e;
  return add_node(out);
}
Expr Expressions::narrow(Expr e, Storage storage) {
  const bool is_half = storage == Storage::kBF16 || storage == Storage::kF16;
  if (!is_half && storage != Storage::kI8 && storage != Storage::kU8 && storage != Storage::kI16)
    return e;
  e = cast(e, compute_type(storage));
  const Node x = node(e);
  const bool is_read = x.op == Op::kLoad || x.op == Op::kValue;
  if (is_read && static_cast<Storage>(x.integer) == storage) return e;
  if (x.op == Op::kNarrow && static_cast<Storage>(x.index) == storage) return e;
  if (is_half && x.op == Op::kConstant) return constant(x.type, rounded_to_half(x.real, storage));
  Node n;
  n.op = Op::kNarrow;
  n.type = x.type;
  n.a = e;
  n.index = static_cast<std::int32_t>(storage);
  return add_node(n);
}
Expr Expressions::select(Expr condition, Expr yes, Expr no) {
  const Type type = promote(node(yes).type, node(no).type);
  yes = cast(yes, type);
  no = cast(no, type);
  condition = cast(condition, Type::kBool);
  if (node(condition).op == Op::kConstant) return node(condition).integer ? yes : no;
  if (yes == no) return yes;
  Node n;
  n.op = Op::kSelect;
  n.type = type;
  n.a = condition;
  n.b = yes;
  n.c = no;
  return add_node(n);
}
Node identity(Reduction how, Type type) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool is_wide = type == Type::kI64;
  double real = 0;
  std::int64_t integer = 0;
  switch (how) {
    case Reduction::kSum:
      break;
    case Reduction::kProduct:
      real = 1;
      integer = 1;
      break;
    case Reduction::kMax:
    case Reduction::kTop:
    case Reduction::kArgMax:
      real = -kInfinity;
      integer = is_wide ? INT64_MIN : INT32_MIN;
      break;
    case Reduction::kMin:
    case Reduction::kArgMin:
      real = kInfinity;
      integer = is_wide ? INT64_MAX : INT32_MAX;
      break;
  }
  Node n;  // equal constants are equal nodes: the other number stays 0
  n.type = type;
  if (is_float(type))
    n.real = real;
  else
    n.integer = integer;
  return n;
}
Expr Expressions::reduce(Reduction how, Expr body) {
  Node n;
  n.op = Op::kReduce;
  const bool position = how == Reduction::kArgMax || how == Reduction::kArgMin;
  if (node(body).type == Type::kBool) body = cast(body, Type::kI32);
  // Compilers find out too, and take a function of the NaN that a mean of nothing is for anything.
  // Where it is another axis that has no extent, nothing is stored.
  if (std::find(extents_.begin(), extents_.end(), 0) != extents_.end())
    return position ? integer(Type::kI64, 0) : add_node(identity(how, node(body).type));
  n.type = position ? Type::kI64 : node(body).type;
  n.a = body;
  n.index = static_cast<std::int32_t>(how);
  return add_node(n);
}
bool Expressions::is_nan(Expr e) const {
  return node(e).op == Op::kConstant && is_float(node(e).type) && std::isnan(node(e).real);
}
Expr Expressions::unary(Op op, Expr a) {
  // Functions go over integers inside, and compilers take the one that it becomes for anything.
  if (is_nan(a) && op != Op::kNot && op != Op::kSignbit) return a;
  Node n;
  n.op = op;
  n.a = a;
  n.type = node(a).type;
  if (op == Op::kNot) {
    n.a = cast(a, Type::kBool);
    n.type = Type::kBool;
  } else if (op == Op::kSignbit) {
    if (!is_float(n.type)) return binary(Op::kLt, a, integer(n.type, 0));
    if (node(a).op == Op::kConstant) return integer(Type::kBool, std::signbit(node(a).real));
    n.type = Type::kBool;
  } else if (!is_float(n.type)) {
    if (n.type == Type::kBool) {
      n.a = cast(a, Type::kI32);
      n.type = Type::kI32;
    }
    const bool identity =
        op == Op::kFloor || op == Op::kCeil || op == Op::kTrunc || op == Op::kRound;
    if (identity) return n.a;
    if (op != Op::kNeg && op != Op::kAbs && op != Op::kBitNot) {  // mathematical functions
      n.a = cast(a, Type::kF32);
      n.type = Type::kF32;
    }
  }
  return add_node(n);
}

Expr Expressions::fold_integers(Op op, Type type, Expr a, Expr b) {
  const Node x = node(a), y = node(b);
  const bool cx = x.op == Op::kConstant, cy = y.op == Op::kConstant;
  if (cx && cy) {
    switch (op) {
      case Op::kAdd:
        return integer(type, x.integer + y.integer);
      case Op::kSub:
        return integer(type, x.integer - y.integer);
      case Op::kMul:
        return integer(type, x.integer * y.integer);
      case Op::kDiv:
        if (y.integer == -1) return integer(type, negative(x.integer));
        return integer(type, y.integer ? x.integer / y.integer : 0);
      case Op::kMod:
        return integer(type, y.integer && y.integer != -1 ? x.integer % y.integer : 0);
      case Op::kLt:
        return integer(Type::kBool, x.integer < y.integer);
      case Op::kLe:
        return integer(Type::kBool, x.integer <= y.integer);
      case Op::kEq:
        return integer(Type::kBool, x.integer == y.integer);
      case Op::kNe:
        return integer(Type::kBool, x.integer != y.integer);
      case Op::kAnd:
        return integer(type, x.integer & y.integer);
      case Op::kOr:
        return integer(type, x.integer | y.integer);
      case Op::kMin:
        return integer(type, std::min(x.integer, y.integer));
      case Op::kMax:
        return integer(type, std::max(x.integer, y.integer));
      default:
        return kNoExpr;
    }
  }
  const auto is = [](const Node& n, std::int64_t v) {
    return n.op == Op::kConstant && n.integer == v;
  };
  if (op == Op::kAdd && is(x, 0)) return b;
  if ((op == Op::kAdd || op == Op::kSub) && is(y, 0)) return a;
  if (op == Op::kMul && (is(x, 0) || is(y, 0))) return integer(type, 0);
  if (op == Op::kMul && is(x, 1)) return b;
  if ((op == Op::kMul || op == Op::kDiv) && is(y, 1)) return a;
  if (op == Op::kDiv && is(y, -1)) return unary(Op::kNeg, a);
  if (op == Op::kMod && (is(y, 1) || is(y, -1))) return integer(type, 0);
  if (type == Type::kBool && (op == Op::kAnd || op == Op::kOr)) {
    const Node& known = cx ? x : y;
    if (cx || cy) return (known.integer != 0) == (op == Op::kAnd) ? (cx ? b : a) : (cx ? a : b);
  }
  if (cy && y.integer > 0 && (op == Op::kDiv || op == Op::kMod || op == Op::kLt)) {
    const std::int64_t limit = bound(a);
    if (limit >= 0 && limit < y.integer) {
      if (op == Op::kDiv) return integer(type, 0);
      if (op == Op::kMod) return a;
      return integer(Type::kBool, 1);
    }
  }
  if (op == Op::kLe && is(x, 0) && bound(b) >= 0) return integer(Type::kBool, 1);
  return kNoExpr;
}

Expr Expressions::fold_floats(Op op, Type type, Expr a, Expr b) {
  const Node x = node(a), y = node(b);
  if (x.op != Op::kConstant || y.op != Op::kConstant) return kNoExpr;
  const auto fold = [&]<class Float>(Float p, Float q) {
    switch (op) {
      case Op::kAdd:
        return constant(type, p + q);
      case Op::kSub:
        return constant(type, p - q);
      case Op::kMul:
        return constant(type, p * q);
      case Op::kDiv:
        return constant(type, p / q);
      default:
        return kNoExpr;
    }
  };
  if (type == Type::kF64) return fold(x.real, y.real);
  return fold(static_cast<float>(x.real), static_cast<float>(y.real));
}

Expr Expressions::binary(Op op, Expr a, Expr b) {
  Type type = promote(node(a).type, node(b).type);
  const bool logical = type == Type::kBool && (op == Op::kAnd || op == Op::kOr || op == Op::kXor);
  if (type == Type::kBool && !logical) type = Type::kI32;
  if (op == Op::kPow || op == Op::kAtan2)
    if (!is_float(type) && op == Op::kAtan2) type = Type::kF32;
  a = cast(a, type);
  b = cast(b, type);
  if (op != Op::kPow)  // one to any power, and any number to the power of zero, is one
    for (const Expr e : {a, b}) {
      if (!is_nan(e)) continue;
      if (op == Op::kLt || op == Op::kLe || op == Op::kEq) return integer(Type::kBool, 0);
      if (op == Op::kNe) return integer(Type::kBool, 1);
      return e;
    }
  if (const Expr folded =
          is_float(type) ? fold_floats(op, type, a, b) : fold_integers(op, type, a, b);
      folded != kNoExpr)
    return folded;
  Node n;
  n.op = op;
  n.a = a;
  n.b = b;
  const bool compares = op == Op::kLt || op == Op::kLe || op == Op::kEq || op == Op::kNe;
  n.type = compares ? Type::kBool : type;
  return add_node(n);
}

Expr Expressions::offset(std::span<const Expr> index, std::span<const std::int64_t> strides) {
  Expr sum = this->index(0);
  for (std::size_t i = 0; i < index.size(); ++i)
    if (strides[i] != 0) sum = add(sum, mul(cast(index[i], index_type_), this->index(strides[i])));
  return sum;
}
Expr Expressions::inside(Expr e, std::int64_t limit) {
  return both(binary(Op::kLe, integer(node(e).type, 0), e),
              binary(Op::kLt, e, integer(node(e).type, limit)));
}
Expr Expressions::clamped(Expr e, std::int64_t limit) {
  if (const std::int64_t known = bound(e); known >= 0 && known < limit) return e;
  const Type t = node(e).type;
  return binary(Op::kMax, binary(Op::kMin, e, integer(t, std::max<std::int64_t>(limit - 1, 0))),
                integer(t, 0));
}

std::int64_t Expressions::bound(Expr e) const {
  const Node& n = node(e);
  switch (n.op) {
    case Op::kConstant:
      return n.integer >= 0 && !is_float(n.type) ? n.integer : -1;
    case Op::kAxis:
      return extents_[static_cast<std::size_t>(n.index)] - 1;
    case Op::kAdd:
    case Op::kMul:
    case Op::kDiv: {
      const std::int64_t a = bound(n.a), b = bound(n.b);
      if (a < 0 || b < 0) return -1;
      if (n.op == Op::kAdd) return a + b;
      if (n.op == Op::kMul) return a * b;
      return node(n.b).op == Op::kConstant && b > 0 ? a / b : a;
    }
    case Op::kMod: {
      const std::int64_t a = bound(n.a), b = bound(n.b);
      return a >= 0 && b > 0 && node(n.b).op == Op::kConstant ? std::min(a, b - 1) : -1;
    }
    default:
      return -1;
  }
}

bool Expressions::depends(Expr e, std::size_t axis) const {
  if (e == kNoExpr) return false;
  const Node& n = node(e);
  if (n.op == Op::kAxis) return static_cast<std::size_t>(n.index) == axis;
  return depends(n.a, axis) || depends(n.b, axis) || depends(n.c, axis);
}

bool Expressions::stride(Expr e, std::size_t axis, std::int64_t& out_stride) const {
  const Node& n = node(e);
  out_stride = 0;
  switch (n.op) {
    case Op::kConstant:
      return true;
    case Op::kAxis:
      out_stride = static_cast<std::size_t>(n.index) == axis ? 1 : 0;
      return true;
    case Op::kAdd:
    case Op::kSub: {
      std::int64_t a = 0, b = 0;
      if (!stride(n.a, axis, a) || !stride(n.b, axis, b)) return false;
      out_stride = n.op == Op::kAdd ? a + b : a - b;
      return true;
    }
    case Op::kMul: {
      std::int64_t a = 0, b = 0;
      if (!stride(n.a, axis, a) || !stride(n.b, axis, b)) return false;
      if (a == 0 && b == 0) return true;
      const Node& factor = node(a == 0 ? n.a : n.b);
      if (factor.op != Op::kConstant) return false;
      out_stride = (a == 0 ? b : a) * factor.integer;
      return true;
    }
    default:
      return !depends(e, axis);
  }
}

}  // namespace backplane::kernelgen
