// Pointwise ops with a truth value for result.
#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

template <class T>
constexpr T truth(bool value) {
  return T(value ? 1 : 0);
}

constexpr auto kEq = [](auto&, auto a, auto b) { return truth<decltype(a)>(a == b); };
constexpr auto kNe = [](auto&, auto a, auto b) { return truth<decltype(a)>(a != b); };
constexpr auto kLt = [](auto&, auto a, auto b) { return truth<decltype(a)>(a < b); };
constexpr auto kLe = [](auto&, auto a, auto b) { return truth<decltype(a)>(a <= b); };
constexpr auto kGt = [](auto&, auto a, auto b) { return truth<decltype(a)>(a > b); };
constexpr auto kGe = [](auto&, auto a, auto b) { return truth<decltype(a)>(a >= b); };
constexpr auto kAnd = [](auto&, auto a, auto b) {
  using T = decltype(a);
  return truth<T>(a != T{} && b != T{});
};
constexpr auto kOr = [](auto&, auto a, auto b) {
  using T = decltype(a);
  return truth<T>(a != T{} || b != T{});
};
constexpr auto kXor = [](auto&, auto a, auto b) {
  using T = decltype(a);
  return truth<T>((a != T{}) != (b != T{}));
};
constexpr auto kNot = [](auto&, auto a) { return truth<decltype(a)>(a == decltype(a){}); };
constexpr auto kIsNan = [](auto&, auto a) { return truth<decltype(a)>(a != a); };
constexpr auto kIsInf = [](auto&, double a) { return truth<double>(std::isinf(a)); };
constexpr auto kIsInfComplex = [](auto&, Complex a) {
  return truth<Complex>(std::isinf(a.real()) || std::isinf(a.imag()));
};
constexpr auto kIsFinite = [](auto&, double a) { return truth<double>(std::isfinite(a)); };
constexpr auto kIsPosInf = [](auto&, double a) { return truth<double>(std::isinf(a) && a > 0); };
constexpr auto kIsNegInf = [](auto&, double a) { return truth<double>(std::isinf(a) && a < 0); };
constexpr auto kNever = [](auto&, std::int64_t) { return std::int64_t{0}; };
constexpr auto kAlways = [](auto&, std::int64_t) { return std::int64_t{1}; };
constexpr auto kSignBit = [](auto&, double a) { return truth<double>(std::signbit(a)); };
constexpr auto kSignBitInteger = [](auto&, std::int64_t a) { return std::int64_t{a < 0}; };

template <class R, class I, class C>
constexpr PointwiseRow compare(std::string_view name, R real, I integer, C complex) {
  return pointwise<2>(name, {"self", "other"}, {}, Compute::kOperands, real, integer, complex);
}
template <class R, class I = None, class C = None>
constexpr PointwiseRow test(std::string_view name, R real, I integer = {}, C complex = {}) {
  return pointwise<1>(name, {"self"}, {}, Compute::kOperands, real, integer, complex);
}

constexpr PointwiseRow kRows[] = {
    compare("aten.eq.Tensor", kEq, kEq, kEq),
    compare("aten.eq.Scalar", kEq, kEq, kEq),
    compare("aten.ne.Tensor", kNe, kNe, kNe),
    compare("aten.ne.Scalar", kNe, kNe, kNe),
    compare("aten.lt.Tensor", kLt, kLt, None{}),
    compare("aten.lt.Scalar", kLt, kLt, None{}),
    compare("aten.le.Tensor", kLe, kLe, None{}),
    compare("aten.le.Scalar", kLe, kLe, None{}),
    compare("aten.gt.Tensor", kGt, kGt, None{}),
    compare("aten.gt.Scalar", kGt, kGt, None{}),
    compare("aten.ge.Tensor", kGe, kGe, None{}),
    compare("aten.ge.Scalar", kGe, kGe, None{}),
    compare("aten.logical_and", kAnd, kAnd, kAnd),
    compare("aten.logical_or", kOr, kOr, kOr),
    compare("aten.logical_xor", kXor, kXor, kXor),
    test("aten.logical_not", kNot, kNot, kNot),
    test("aten.isnan", kIsNan, kNever, kIsNan),
    test("aten.isinf", kIsInf, kNever, kIsInfComplex),
    test("aten.isfinite", kIsFinite, kAlways),
    test("aten.isposinf", kIsPosInf, kNever),
    test("aten.isneginf", kIsNegInf, kNever),
    test("aten.signbit", kSignBit, kSignBitInteger),
};

}  // namespace

PointwiseRows comparison_kernels() { return kRows; }

}  // namespace backplane::reference
