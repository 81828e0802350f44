// What CUDA C means on the host: goes before the text of kernels, which the host's C++ compiler
// builds then. The threads of a block are fibres of one thread, which change at barriers; memory
// that a block shares belongs to the thread that runs it.
#pragma once

#include <math.h>
#include <string.h>

#define __device__ static
#define __global__
#define __shared__ static thread_local
#define __launch_bounds__(...)

struct __attribute__((aligned(8))) uint2 {
  unsigned x, y;
};
struct __attribute__((aligned(16))) uint4 {
  unsigned x, y, z, w;
};
struct EmulatedIndex {
  unsigned x, y, z;
};
// Given to a launch by the emulated driver.
struct EmulatedFibres {
  void (*run)(unsigned count, void (*body)(void*, unsigned), void* data);
  void (*meet)();       // returns when all fibres that have not ended have called it
  void (*meet_warp)();  // of 32 fibres
};
static thread_local EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;
static thread_local const EmulatedFibres* emulated_fibres;

static inline void __syncthreads() {
  const EmulatedIndex self = threadIdx;
  emulated_fibres->meet();
  threadIdx = self;
}

// Threads of a warp exchange registers. What one has written stays until all have met once more.
template <class T>
static inline T __shfl_xor_sync(unsigned, T x, int mask) {
  static thread_local T registers[2][1024];
  static thread_local bool turns[1024];
  const EmulatedIndex self = threadIdx;
  const unsigned at = self.x + blockDim.x * (self.y + blockDim.y * self.z);
  const bool turn = turns[at] = !turns[at];
  registers[turn][at] = x;
  emulated_fibres->meet_warp();
  threadIdx = self;
  return registers[turn][at ^ (unsigned)mask];
}

// The texts are built without the headers of C++, which take the compiler longer than most kernels:
// what is a function of double alone in C is one of float too.
#define EMULATED_OF_FLOAT(name) \
  static inline float name(float x) { return __builtin_##name##f(x); }
EMULATED_OF_FLOAT(acos)
EMULATED_OF_FLOAT(acosh)
EMULATED_OF_FLOAT(asin)
EMULATED_OF_FLOAT(asinh)
EMULATED_OF_FLOAT(atan)
EMULATED_OF_FLOAT(atanh)
EMULATED_OF_FLOAT(ceil)
EMULATED_OF_FLOAT(cos)
EMULATED_OF_FLOAT(cosh)
EMULATED_OF_FLOAT(erf)
EMULATED_OF_FLOAT(erfc)
EMULATED_OF_FLOAT(exp)
EMULATED_OF_FLOAT(exp2)
EMULATED_OF_FLOAT(expm1)
EMULATED_OF_FLOAT(fabs)
EMULATED_OF_FLOAT(floor)
EMULATED_OF_FLOAT(lgamma)
EMULATED_OF_FLOAT(log)
EMULATED_OF_FLOAT(log10)
EMULATED_OF_FLOAT(log1p)
EMULATED_OF_FLOAT(log2)
EMULATED_OF_FLOAT(nearbyint)
EMULATED_OF_FLOAT(rint)
EMULATED_OF_FLOAT(round)
EMULATED_OF_FLOAT(sin)
EMULATED_OF_FLOAT(sinh)
EMULATED_OF_FLOAT(sqrt)
EMULATED_OF_FLOAT(tan)
EMULATED_OF_FLOAT(tanh)
EMULATED_OF_FLOAT(tgamma)
EMULATED_OF_FLOAT(trunc)
#define EMULATED_OF_FLOATS(name) \
  static inline float name(float x, float y) { return __builtin_##name##f(x, y); }
EMULATED_OF_FLOATS(atan2)
EMULATED_OF_FLOATS(copysign)
EMULATED_OF_FLOATS(fmax)
EMULATED_OF_FLOATS(fmin)
EMULATED_OF_FLOATS(fmod)
EMULATED_OF_FLOATS(hypot)
EMULATED_OF_FLOATS(nextafter)
EMULATED_OF_FLOATS(pow)
EMULATED_OF_FLOATS(remainder)
static inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline float ldexp(float x, int y) { return __builtin_ldexpf(x, y); }

template <class To, class From>
static inline To emulated_bits(From from) {
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline int __float_as_int(float x) { return emulated_bits<int>(x); }
static inline float __int_as_float(int x) { return emulated_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
static inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
static inline double __longlong_as_double(long long x) { return emulated_bits<double>(x); }

#define BP_HALF
typedef unsigned short bp_half;
static inline float bp_from_f16(bp_half x) { return (float)emulated_from_half(x); }
static inline bp_half bp_to_f16(float x) { return emulated_to_half((double)x); }

static inline void
emulated_begin_warps();  // emulated_warps.h goes between this text and the kernels

// The parameters of a launch are pointers to values of the kernel's types.
template <int... I>
struct EmulatedPlaces {};
template <int N, int... I>
struct EmulatedCount : EmulatedCount<N - 1, N - 1, I...> {};
template <int... I>
struct EmulatedCount<0, I...> {
  typedef EmulatedPlaces<I...> Places;
};
template <class... A, int... I>
static inline void emulated_call(void (*kernel)(A...), void** parameters, EmulatedPlaces<I...>) {
  kernel(*(A*)parameters[I]...);
}

template <class... A>
struct EmulatedLaunch {
  void (*kernel)(A...);
  void** parameters;
  EmulatedIndex grid, block, at;

  static void thread(void* data, unsigned index) {
    const EmulatedLaunch& self = *(const EmulatedLaunch*)data;
    gridDim = self.grid;
    blockDim = self.block;
    blockIdx = self.at;
    threadIdx.x = index % self.block.x;
    threadIdx.y = index / self.block.x % self.block.y;
    threadIdx.z = index / self.block.x / self.block.y;
    emulated_begin_warps();
    emulated_call(self.kernel, self.parameters, typename EmulatedCount<sizeof...(A)>::Places());
  }
};

// `meets`: some thread waits for others.
template <class... A>
static void emulated_run(void (*kernel)(A...), bool meets, void** parameters, const unsigned* grid,
                         const unsigned* block, const EmulatedFibres* fibres) {
  emulated_fibres = fibres;
  EmulatedLaunch<A...> launch = {
      kernel, parameters, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, {0, 0, 0}};
  const unsigned threads = block[0] * block[1] * block[2];
  for (launch.at.z = 0; launch.at.z < grid[2]; ++launch.at.z)
    for (launch.at.y = 0; launch.at.y < grid[1]; ++launch.at.y)
      for (launch.at.x = 0; launch.at.x < grid[0]; ++launch.at.x) {
        if (meets) {
          fibres->run(threads, EmulatedLaunch<A...>::thread, &launch);
          continue;
        }
        for (unsigned i = 0; i < threads; ++i) EmulatedLaunch<A...>::thread(&launch, i);
      }
}
template <class... A>
constexpr int emulated_parameters(void (*)(A...)) {
  return sizeof...(A);
}
#define EMULATED_KERNEL(name, meets)                                                              \
  extern "C" {                                                                                    \
  extern const int name##_parameters = emulated_parameters(name);                                 \
  }                                                                                               \
  extern "C" void name##_emulated(void** parameters, const unsigned* grid, const unsigned* block, \
                                  const EmulatedFibres* fibres) {                                 \
    emulated_run(name, meets, parameters, grid, block, fibres);                                   \
  }
