#include "functions.hpp"

namespace backplane::kernelgen {
namespace {

// $F, $I: float and int of the width; $X: the width as a suffix. BP_RAISE(v, s) is v * 2^n for
// s = 1.5 * 2^23 + n, where v and the result are normal.
struct Function {
  std::string_view name;
  Op op;  // kConstant: called by others only
  std::string_view text;
};

constexpr Function kFunctions[] = {
    {"fmax", Op::kMax, R"(
BP_FN $F bp_fmax_$X($F a, $F b) { return BP_SEL_$X(BP_OR_$X(a > b, a != a), a, b); }
)"},
    {"fmin", Op::kMin, R"(
BP_FN $F bp_fmin_$X($F a, $F b) { return BP_SEL_$X(BP_OR_$X(a < b, a != a), a, b); }
)"},
    {"sign", Op::kConstant, R"(
BP_FN $F bp_copysign_$X($F m, $F s) {
  return BP_AF_$X((BP_AI_$X(m) & 0x7fffffff) | (BP_AI_$X(s) & (int)0x80000000));
}
BP_FN $F bp_abs_$X($F x) { return BP_AF_$X(BP_AI_$X(x) & 0x7fffffff); }
)"},
    // v * 2^n for integer n; two factors, so that subnormal results come out right.
    {"scale", Op::kConstant, R"(
BP_FN $F bp_scale_$X($F v, $F n) {
  $I whole = BP_CI_$X(n);
  $I low = whole >> 1;
  $I high = whole - low;
  return v * BP_AF_$X((low + 127) << 23) * BP_AF_$X((high + 127) << 23);
}
BP_FN $F bp_nearest_$X($F v) { return (v + 0x1.8p23f) - 0x1.8p23f; }
BP_FN $F bp_expm1_reduced_$X($F r) {
  $F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * (r * r) + r;
}
)"},
    // The power of two is added to the exponent, so it has to be that of a normal number. What is
    // out of range runs through and is replaced at the end, NaN with it.
    {"exp_reduced", Op::kConstant, R"(
BP_FN $F bp_exp_reduced_$X($F v, $F shifted) {
  $F n = shifted - 0x1.8p23f;
  $F r = (v - n * 0.693359375f) - n * -2.12194440e-4f;
  $F p = r * 1.3814537e-3f + 8.3687460e-3f;
  p = p * r + 4.1668393e-2f;
  p = p * r + 1.6666521e-1f;
  p = p * r + 4.9999994e-1f;
  p = p * r + 1.0f;
  return p * r + 1.0f;
}
BP_FN $F bp_exp_in_range_$X($F v) {
  $F shifted = v * 1.44269504088896341f + 0x1.8p23f;
  return BP_RAISE_$X(bp_exp_reduced_$X(v, shifted), shifted);
}
)"},
    // Results that would be subnormal are zero.
    {"exp_normal", Op::kExpNormal, R"(
BP_FN $F bp_exp_normal_$X($F x) {
  $F y = BP_SEL_$X(x <= 88.7228317f, bp_exp_in_range_$X(x), x + BP_INFINITY);
  return BP_SEL_$X(x < -87.3365402f, ($F)(0.0f), y);
}
)"},
    // Subnormal results come from a normal one, 2^64 times as large.
    {"exp", Op::kExp, R"(
BP_FN $F bp_exp_$X($F x) {
  $F shifted = x * 1.44269504088896341f + 0x1.8p23f;
  $F p = bp_exp_reduced_$X(x, shifted);
  $F y = BP_RAISE_$X(p, shifted + BP_SEL_$X(x < -87.3365402f, ($F)(64.0f), ($F)(0.0f)));
  y = y * BP_SEL_$X(x < -87.3365402f, ($F)(0x1p-64f), ($F)(1.0f));
  y = BP_SEL_$X(x <= 88.7228317f, y, x + BP_INFINITY);
  return BP_SEL_$X(x < -104.0f, ($F)(0.0f), y);
}
)"},
    {"expm1", Op::kExpm1, R"(
BP_FN $F bp_expm1_$X($F x) {
  $F v = BP_SEL_$X(x > 89.0f, ($F)(89.0f), x);
  v = BP_SEL_$X(v < -20.0f, ($F)(-20.0f), v);
  $F n = bp_nearest_$X(v * 1.44269504088896341f);
  $F r = (v - n * 0.693359375f) - n * -2.12194440e-4f;
  $F q = bp_expm1_reduced_$X(r);
  $F power = bp_scale_$X(($F)(1.0f), BP_SEL_$X(n > 126.0f, ($F)(126.0f), n));
  $F middle = power * q + (power - 1.0f);
  $F large = bp_scale_$X(q + 1.0f, n) - 1.0f;
  $F y = BP_SEL_$X(bp_abs_$X(n) > 24.0f, large, middle);
  return BP_SEL_$X(n == 0.0f, BP_SEL_$X(x == 0.0f, x, q), y);
}
)"},
    {"log", Op::kLog, R"(
BP_FN $F bp_log_$X($F x) {
  $F scaled = BP_SEL_$X(x < 0x1p-126f, x * 0x1p23f, x);
  $I bits = BP_AI_$X(scaled);
  $F e = BP_CF_$X(((bits >> 23) & 0xff) - 126);
  e = BP_SEL_$X(x < 0x1p-126f, e - 23.0f, e);
  $F m = BP_AF_$X((bits & 0x007fffff) | 0x3f000000);
  e = BP_SEL_$X(m < 0.70710678118654752440f, e - 1.0f, e);
  m = BP_SEL_$X(m < 0.70710678118654752440f, m + m, m) - 1.0f;
  $F z = m * m;
  $F p = m * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  $F y = p * m * z + e * -2.12194440e-4f - 0.5f * z;
  y = m + y + e * 0.693359375f;
  y = BP_SEL_$X(x == BP_INFINITY, x, y);
  y = BP_SEL_$X(x == 0.0f, ($F)(-BP_INFINITY), y);
  return BP_SEL_$X(BP_OR_$X(x < 0.0f, x != x), ($F)(BP_NAN), y);
}
)"},
    // Kahan: the error of 1 + x is taken out of the logarithm.
    {"log1p", Op::kLog1p, R"(
BP_FN $F bp_log1p_$X($F x) {
  $F u = x + 1.0f;
  $F d = u - 1.0f;
  $F l = bp_log_$X(u);
  $F y = l * (x / BP_SEL_$X(d == 0.0f, ($F)(1.0f), d));
  y = BP_SEL_$X(BP_OR_$X(u == BP_INFINITY, u == 0.0f), l, y);
  return BP_SEL_$X(d == 0.0f, x, y);
}
)"},
    {"tanh", Op::kTanh, R"(
BP_FN $F bp_tanh_$X($F x) {
  $F a = bp_abs_$X(x);
  $F z = x * x;
  $F p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  $F small = p * z * x + x;
  $F capped = BP_SEL_$X(a > 10.0f, ($F)(10.0f), a);
  $F large = 1.0f - 2.0f / (bp_exp_in_range_$X(capped + capped) + 1.0f);
  $F y = bp_copysign_$X(BP_SEL_$X(a < 0.625f, small, large), x);
  return BP_SEL_$X(x != x, x, y);
}
)"},
    {"sigmoid", Op::kSigmoid, R"(
BP_FN $F bp_sigmoid_$X($F x) { return 1.0f / (1.0f + bp_exp_normal_$X(-x)); }
)"},
    // A polynomial near zero, 1 - exp(polynomial) elsewhere.
    {"erf", Op::kErf, R"(
BP_FN $F bp_erf_$X($F x) {
  $F a = bp_abs_$X(x);
  $F z = x * x;
  $F p = z * -5.96761703e-4f + 4.99119423e-3f;
  p = p * z - 2.67681349e-2f;
  p = p * z + 1.12819925e-1f;
  p = p * z - 3.76125336e-1f;
  p = p * z + 1.28379166e-1f;
  $F small = p * x + x;
  $F t = BP_SEL_$X(a > 4.0f, ($F)(4.0f), a);
  $F s = t * t;
  $F q = (t * -1.72853470e-5f + 3.83197126e-4f) * s + (t * -3.88396438e-3f + 2.42546219e-2f);
  q = q * t - 1.06777877e-1f;
  q = q * t - 6.34846687e-1f;
  q = q * t - 1.28717512e-1f;
  $F large = bp_copysign_$X(1.0f - bp_exp_in_range_$X(q * t - t), x);
  return BP_SEL_$X(a > 0.927734375f, large, small);
}
)"},
    // Of the standard normal distribution: 2^polynomial on the left of zero, one minus that on the
    // right. Readers multiply it with their argument, so small values need no small relative error.
    {"normal_cdf", Op::kNormalCdf, R"(
BP_FN $F bp_normal_cdf_$X($F x) {
  $F a = bp_abs_$X(x);
  $F t = BP_SEL_$X(a > 5.7f, ($F)(5.7f), a);
  $F p = t * -2.3349487e-6f + 3.3737811e-5f;
  p = p * t - 1.6129382e-4f;
  p = p * t - 1.9170360e-4f;
  p = p * t + 7.1268654e-3f;
  p = p * t - 5.2533612e-2f;
  p = p * t - 4.5919830e-1f;
  p = p * t - 1.1511060f;
  p = p * t - 1.0f;
  $F shifted = p + 0x1.8p23f;
  $F r = p - (shifted - 0x1.8p23f);
  $F q = r * 1.5353362e-4f + 1.3398874e-3f;
  q = q * r + 9.6184369e-3f;
  q = q * r + 5.5503324e-2f;
  q = q * r + 2.4022648e-1f;
  q = q * r + 6.9314718e-1f;
  q = q * r + 1.0f;
  $F tail = BP_SEL_$X(a <= 5.7f, BP_RAISE_$X(q, shifted), t * 0.0f);
  return BP_SEL_$X(x < 0.0f, tail, 1.0f - tail);
}
)"},
};

const Function* find_function(Op op) {
  for (const Function& f : kFunctions)
    if (f.op == op && op != Op::kConstant) return &f;
  return nullptr;
}

struct Library {
  Op op;
  std::string_view f32, f64, opencl;
};
constexpr Library kLibrary[] = {
    {Op::kExpNormal, "expf", "exp", "exp"},
    {Op::kExp, "expf", "exp", "exp"},
    {Op::kExpm1, "expm1f", "expm1", "expm1"},
    {Op::kLog, "logf", "log", "log"},
    {Op::kLog1p, "log1pf", "log1p", "log1p"},
    {Op::kTanh, "tanhf", "tanh", "tanh"},
    {Op::kErf, "erff", "erf", "erf"},
    {Op::kErfc, "erfcf", "erfc", "erfc"},
    {Op::kLgamma, "lgammaf", "lgamma", "lgamma"},
    {Op::kSqrt, "sqrtf", "sqrt", "sqrt"},
    {Op::kFloor, "floorf", "floor", "floor"},
    {Op::kCeil, "ceilf", "ceil", "ceil"},
    {Op::kTrunc, "truncf", "trunc", "trunc"},
    {Op::kRound, "rintf", "rint", "rint"},
    {Op::kSin, "sinf", "sin", "sin"},
    {Op::kCos, "cosf", "cos", "cos"},
    {Op::kTan, "tanf", "tan", "tan"},
    {Op::kAsin, "asinf", "asin", "asin"},
    {Op::kAcos, "acosf", "acos", "acos"},
    {Op::kAtan, "atanf", "atan", "atan"},
    {Op::kSinh, "sinhf", "sinh", "sinh"},
    {Op::kCosh, "coshf", "cosh", "cosh"},
    {Op::kAsinh, "asinhf", "asinh", "asinh"},
    {Op::kAcosh, "acoshf", "acosh", "acosh"},
    {Op::kAtanh, "atanhf", "atanh", "atanh"},
    {Op::kExp2, "exp2f", "exp2", "exp2"},
    {Op::kLog2, "log2f", "log2", "log2"},
    {Op::kLog10, "log10f", "log10", "log10"},
    {Op::kAbs, "fabsf", "fabs", "fabs"},
    {Op::kPow, "powf", "pow", "pow"},
    {Op::kAtan2, "atan2f", "atan2", "atan2"},
    {Op::kFmod, "fmodf", "fmod", "fmod"},
};

void replace_all(std::string& text, std::string_view from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

constexpr std::string_view kOpenClPrelude = R"(
#pragma OPENCL FP_CONTRACT ON
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define BP_FN
#define BP_GLOBAL __global
#define BP_KERNEL __kernel void
#define BP_ITEM
#define BP_ID(d) get_global_id(d)
#define BP_GROUP_ID get_group_id(0)
#define BP_LOCAL_ID get_local_id(0)
#define BP_LOCAL_SIZE get_local_size(0)
#define BP_LOCAL __local
#define BP_LOCAL_AS __local
#define BP_RESTRICT restrict
#define BP_ALIGNED __attribute__((aligned(64)))
#define BP_ALIGNED_16 __attribute__((aligned(16)))
#define BP_UNROLL _Pragma("unroll")
#define BP_UNROLL_4 _Pragma("unroll 4")
#define BP_BARRIER barrier(CLK_LOCAL_MEM_FENCE)
#define BP_MIN(a, b) min(a, b)
#define BP_MAX(a, b) max(a, b)
#define BP_INFINITY INFINITY
#define BP_NAN NAN
#define BP_AI_1(x) as_int(x)
#define BP_AF_1(x) as_float(x)
#define BP_CI_1(x) ((int)(x))
#define BP_CF_1(x) ((float)(x))
#define BP_SEL_1(m, a, b) ((m) ? (a) : (b))
#define BP_OR_1(a, b) ((a) || (b))
#define BP_RAISE_1(v, shifted) as_float(as_uint(v) + (as_uint(shifted) << 23))
#define BP_RAISE_16(v, shifted) as_float16(as_uint16(v) + (as_uint16(shifted) << 23))
#define BP_AI_16(x) as_int16(x)
#define BP_AF_16(x) as_float16(x)
#define BP_CI_16(x) convert_int16(x)
#define BP_CF_16(x) convert_float16(x)
#define BP_SEL_16(m, a, b) select(b, a, m)
#define BP_OR_16(a, b) ((a) | (b))
#define BP_IOTA_16 ((int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#define BP_LANES_16(T, f) ((T)(f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), \
  f(a), f(b), f(c), f(d), f(e), f(f)))
typedef char schar;  // vload takes no signed char
#define BP_F16_LOAD(p, i) vload_half(i, p)
#define BP_F16_STORE(p, i, v) vstore_half_rte(v, i, p)
#define BP_BITS_F32(s) as_float((int)(s))
#define BP_BITS_F64(s) as_double(s)
typedef half bp_half;
BP_FN float bp_round_f16_1(float x) {
  ushort bits;
  vstore_half_rte(x, 0, (bp_half*)&bits);
  return vload_half(0, (const bp_half*)&bits);
}
// PoCL takes vload16 and vstore16 apart into loads and stores of their elements, and fma() of
// vectors into calls: slow kernels, or many passes of its compiler to put them together again.
#ifdef __clang__
typedef float16 bp_float16_anywhere __attribute__((aligned(4)));
typedef int16 bp_int16_anywhere __attribute__((aligned(4)));
typedef ushort16 bp_ushort16_anywhere __attribute__((aligned(2)));
#define BP_LOAD_F32_16(i, p) (((BP_GLOBAL const bp_float16_anywhere*)(p))[i])
#define BP_LOAD_I32_16(i, p) (((BP_GLOBAL const bp_int16_anywhere*)(p))[i])
#define BP_STORE_F32_16(v, i, p) (((BP_GLOBAL bp_float16_anywhere*)(p))[i] = (v))
// PoCL's vstore_half16 of what its compiler knows becomes a store that wants an aligned address.
BP_FN float16 bp_load_f16_16(BP_GLOBAL const bp_half* p) {
  const ushort16 bits = *(BP_GLOBAL const bp_ushort16_anywhere*)p;
  return vload_half16(0, (const bp_half*)&bits);
}
BP_FN void bp_store_f16_16(float16 v, BP_GLOBAL bp_half* p) {
  ushort16 bits;
  vstore_half16_rte(v, 0, (bp_half*)&bits);
  *(BP_GLOBAL bp_ushort16_anywhere*)p = bits;
}
#define BP_LOAD_F16_16(i, p) bp_load_f16_16((p) + (i) * 16)
#define BP_STORE_F16_16(v, i, p) bp_store_f16_16(v, (p) + (i) * 16)
#else
#define BP_LOAD_F32_16(i, p) vload16(i, p)
#define BP_LOAD_I32_16(i, p) vload16(i, p)
#define BP_STORE_F32_16(v, i, p) vstore16(v, i, p)
#define BP_LOAD_F16_16(i, p) vload_half16(i, p)
#define BP_STORE_F16_16(v, i, p) vstore_half16_rte(v, i, p)
#endif
#if defined(__clang__) && defined(__FMA__)  // contracted into one instruction
#define BP_FMA(a, b, c) ((a) * (b) + (c))
#else
#define BP_FMA(a, b, c) fma(a, b, c)
#endif
// Past the caches, where the compiler can. Such stores are in no order with others until BP_STREAMED.
#ifdef __has_builtin
#if __has_builtin(__builtin_nontemporal_store)
BP_FN void bp_stream_16(float16 v, BP_GLOBAL float* p) {
  if (((size_t)p & 63) == 0)
    __builtin_nontemporal_store(v, (BP_GLOBAL float16*)p);
  else
    BP_STORE_F32_16(v, 0, p);
}
#define BP_STREAM_F32_16(v, i, p) bp_stream_16(v, (p) + (i) * 16)
#if __has_builtin(__builtin_ia32_sfence)
#define BP_STREAMED __builtin_ia32_sfence()
#else
#define BP_STREAMED mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif
#endif
// An address behind the end is not read. Interpreters of kernels (SPIR) do not know the instruction.
#if __has_builtin(__builtin_prefetch) && (defined(__x86_64__) || defined(__aarch64__))
#define BP_PREFETCH(p) __builtin_prefetch((const void*)(size_t)(p))
#endif
#endif
#ifndef BP_PREFETCH
#define BP_PREFETCH(p)
#endif
#ifndef BP_STREAMED
#define BP_STREAM_F32_16(v, i, p) BP_STORE_F32_16(v, i, p)
#define BP_STREAMED
#endif
)";
constexpr std::string_view kC11Prelude = R"(
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
typedef signed char schar;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#define BP_FN static inline
#define BP_GLOBAL
#define BP_KERNEL void
#define BP_ITEM const size_t* bp_item,
#define BP_ID(d) bp_item[d]
#define BP_RESTRICT restrict
#define BP_ALIGNED
#define BP_MIN(a, b) ((a) < (b) ? (a) : (b))
#define BP_MAX(a, b) ((a) > (b) ? (a) : (b))
#define BP_STREAMED
#define BP_INFINITY INFINITY
#define BP_NAN NAN
static inline int bp_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static inline float bp_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline double bp_as_double(ulong x) { double y; memcpy(&y, &x, 8); return y; }
#define BP_AI_1(x) bp_as_int(x)
#define BP_AF_1(x) bp_as_float(x)
#define BP_CI_1(x) ((int)(x))
#define BP_CF_1(x) ((float)(x))
#define BP_SEL_1(m, a, b) ((m) ? (a) : (b))
#define BP_OR_1(a, b) ((a) || (b))
#define BP_RAISE_1(v, shifted) \
  bp_as_float((int)((uint)bp_as_int(v) + ((uint)bp_as_int(shifted) << 23)))
#define BP_F16_LOAD(p, i) ((float)(p)[i])
#define BP_F16_STORE(p, i, v) ((p)[i] = (_Float16)(v))
#define BP_BITS_F32(s) bp_as_float((int)(s))
#define BP_BITS_F64(s) bp_as_double(s)
#define BP_FMA(a, b, c) fmaf(a, b, c)
typedef _Float16 bp_half;
static inline float bp_round_f16_1(float x) { return (float)(_Float16)x; }
)";
// Halves by instructions of PTX: NVRTC comes without cuda_fp16.h, and reads it slowly. Who builds
// the texts with another compiler says BP_HALF and brings the three.
constexpr std::string_view kCudaPrelude = R"(
typedef signed char schar;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#define BP_FN __device__ inline
#define BP_GLOBAL
#define BP_KERNEL extern "C" __global__ void
#define BP_ITEM
#define BP_ID_0 (blockIdx.x * (size_t)blockDim.x + threadIdx.x)
#define BP_ID_1 (blockIdx.y * (size_t)blockDim.y + threadIdx.y)
#define BP_ID_2 (blockIdx.z * (size_t)blockDim.z + threadIdx.z)
#define BP_ID(d) BP_ID_##d
#define BP_GROUP_ID blockIdx.x
#define BP_LOCAL_ID threadIdx.x
#define BP_LOCAL_SIZE blockDim.x
#define BP_LOCAL __shared__
#define BP_LOCAL_AS
#define BP_RESTRICT __restrict__
#define BP_ALIGNED
#define BP_ALIGNED_16 __attribute__((aligned(16)))
#define BP_UNROLL _Pragma("unroll")
#define BP_UNROLL_4 _Pragma("unroll 4")
#define BP_SHUFFLE_XOR(x, mask) __shfl_xor_sync(0xffffffffu, x, mask)
#define BP_BARRIER __syncthreads()
#define BP_MIN(a, b) ((a) < (b) ? (a) : (b))
#define BP_MAX(a, b) ((a) > (b) ? (a) : (b))
#define BP_STREAMED
#define BP_INFINITY __int_as_float(0x7f800000)
#define BP_NAN __int_as_float(0x7fc00000)
#define BP_AI_1(x) __float_as_int(x)
#define BP_AF_1(x) __int_as_float(x)
#define BP_CI_1(x) ((int)(x))
#define BP_CF_1(x) ((float)(x))
#define BP_SEL_1(m, a, b) ((m) ? (a) : (b))
#define BP_OR_1(a, b) ((a) || (b))
#define BP_RAISE_1(v, shifted) \
  __uint_as_float(__float_as_uint(v) + (__float_as_uint(shifted) << 23))
#define BP_F16_LOAD(p, i) bp_from_f16((p)[i])
#define BP_F16_STORE(p, i, v) ((p)[i] = bp_to_f16(v))
#define BP_BITS_F32(s) __int_as_float((int)(s))
#define BP_BITS_F64(s) __longlong_as_double((long long)(s))
#define BP_FMA(a, b, c) fmaf(a, b, c)
#ifndef BP_HALF
typedef ushort bp_half;
BP_FN float bp_from_f16(bp_half x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
BP_FN bp_half bp_to_f16(float x) {
  bp_half y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#endif
BP_FN float bp_round_f16_1(float x) { return bp_from_f16(bp_to_f16(x)); }
)";
// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
constexpr std::string_view kCommonPrelude = R"(
BP_FN float bp_from_bf16_1(ushort x) { return BP_AF_1((int)((uint)x << 16)); }
BP_FN ushort bp_to_bf16_1(float x) {
  uint u = (uint)BP_AI_1(x);
  uint r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (ushort)(x != x ? 0x7fc0u : r);
}
)";
// PoCL's sin, cos and tan of a vector are wrong for numbers near zero beside one that is huge or
// not finite: those are computed apart.
constexpr std::string_view kWidePrelude = R"(
#define BP_APART_16(f) \
BP_FN float16 bp_##f##_16(float16 x) { \
  int16 huge = !(fabs(x) < 1e6f); \
  float16 y = f(select(x, (float16)(0.0f), huge)); \
  return any(huge) ? select(y, f(select((float16)(1.0f), x, huge)), huge) : y; \
}
BP_APART_16(sin)
BP_APART_16(cos)
BP_APART_16(tan)
BP_FN float16 bp_from_bf16_16(ushort16 x) { return as_float16(convert_uint16(x) << 16); }
BP_FN ushort16 bp_to_bf16_16(float16 x) {
  uint16 u = as_uint16(x);
  uint16 r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return convert_ushort16(select(r, (uint16)(0x7fc0u), x != x));
}
BP_FN float16 bp_round_f16_16(float16 x) {
  ushort16 bits;
  vstore_half16_rte(x, 0, (bp_half*)&bits);
  return vload_half16(0, (const bp_half*)&bits);
}
)";

}  // namespace

bool is_own_function(Op op) { return find_function(op) != nullptr; }
std::string_view own_function_name(Op op) { return find_function(op)->name; }

std::string own_functions(std::int64_t lanes) {
  std::string out;
  for (const Function& f : kFunctions) {  // callees stand before their callers
    std::string text(f.text);
    replace_all(text, "$F", type_name(Type::kF32, lanes));
    replace_all(text, "$I", type_name(Type::kI32, lanes));
    replace_all(text, "$X", std::to_string(lanes));
    out += text;
  }
  return out;
}

std::string_view library_function(Op op, Type type, Dialect dialect) {
  for (const Library& row : kLibrary)
    if (row.op == op)
      return dialect == Dialect::kOpenCL ? row.opencl : type == Type::kF64 ? row.f64 : row.f32;
  return {};
}

std::string type_name(Type type, std::int64_t lanes) {
  std::string name = type == Type::kF32   ? "float"
                     : type == Type::kF64 ? "double"
                     : type == Type::kI64 ? "long"
                                          : "int";
  return lanes > 1 ? name + std::to_string(lanes) : name;
}

std::string_view element_type(Storage storage) {
  switch (storage) {
    case Storage::kF32:
      return "float";
    case Storage::kF64:
      return "double";
    case Storage::kF16:
      return "bp_half";
    case Storage::kBF16:
      return "ushort";
    case Storage::kI64:
      return "long";
    case Storage::kI32:
      return "int";
    case Storage::kI16:
      return "short";
    case Storage::kI8:
      return "schar";
    default:
      return "uchar";
  }
}

std::string element_load(Storage storage, const std::string& tensor, const std::string& at) {
  switch (storage) {
    case Storage::kBF16:
      return "bp_from_bf16_1(" + tensor + "[" + at + "])";
    case Storage::kF16:
      return "BP_F16_LOAD(" + tensor + ", " + at + ")";
    case Storage::kI16:
    case Storage::kI8:
    case Storage::kU8:
      return "(int)" + tensor + "[" + at + "]";
    case Storage::kBool:  // any byte but 0 is true
      return "(int)(" + tensor + "[" + at + "] != 0)";
    default:
      return tensor + "[" + at + "]";
  }
}
std::string element_store(Storage storage, const std::string& tensor, const std::string& at,
                          const std::string& value) {
  if (storage == Storage::kF16) return "BP_F16_STORE(" + tensor + ", " + at + ", " + value + ")";
  const std::string place = tensor + "[" + at + "] = ";
  if (storage == Storage::kBF16) return place + "bp_to_bf16_1(" + value + ")";
  return place + "(" + std::string(element_type(storage)) + ")(" + value + ")";
}

std::string print_library(Dialect dialect, std::int64_t lanes) {
  std::string out = "#ifndef BP_BEGIN\n#define BP_BEGIN\n#endif\n";
  out += std::string_view(dialect == Dialect::kOpenCL ? kOpenClPrelude
                          : dialect == Dialect::kCuda ? kCudaPrelude
                                                      : kC11Prelude);
  out += kCommonPrelude;
  out += own_functions(1);
  if (dialect == Dialect::kOpenCL && lanes > 1) {
    out += kWidePrelude;
    out += own_functions(lanes);
  }
  return out;
}

}  // namespace backplane::kernelgen
