// For tests: what CUDA C means to the host's compiler, with a thread for each of a block's.
#pragma once

namespace backplane::kernelgen {

// Taken apart, because the layer check reads this file as C++.
inline constexpr const char* kDevice =
    "#"
    R"(include <barrier>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>
#define __device__ static
#define __global__
#define __shared__ static
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct Index { unsigned x, y, z; };
static thread_local Index threadIdx, blockIdx;
static Index blockDim;
static std::optional<std::barrier<>> barrier;
#define BP_HALF
typedef _Float16 bp_half;
static float bp_from_f16(bp_half x) { return (float)x; }
static bp_half bp_to_f16(float x) { return (bp_half)x; }
#define __syncthreads() barrier->arrive_and_wait()
// All threads of a block exchange registers at the same places.
template <class T> static T __shfl_xor_sync(unsigned, T x, int mask) {
  static T all[1024];
  all[threadIdx.x] = x;
  __syncthreads();
  const T other = all[threadIdx.x ^ mask];
  __syncthreads();
  return other;
}
template <class To, class From> static To as(From x) { To y; memcpy(&y, &x, sizeof y); return y; }
static int __float_as_int(float x) { return as<int>(x); }
static float __int_as_float(int x) { return as<float>(x); }
static unsigned __float_as_uint(float x) { return as<unsigned>(x); }
static float __uint_as_float(unsigned x) { return as<float>(x); }
static double __longlong_as_double(long long x) { return as<double>(x); }
template <class Kernel> static void launch(size_t items, unsigned group, Kernel kernel) {
  blockDim = {group, 1, 1};
  for (unsigned block = 0; block < items / group; ++block) {
    barrier.emplace(group);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < group; ++i)
      threads.emplace_back([=] {
        threadIdx = {i, 0, 0};
        blockIdx = {block, 0, 0};
        kernel();
        barrier->arrive_and_drop();
      });
    for (auto& thread : threads) thread.join();
  }
}
)";

}  // namespace backplane::kernelgen
