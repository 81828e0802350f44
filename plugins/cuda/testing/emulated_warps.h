// What kernelgen::matrix_words mean on the host: the threads of a warp meet, exchange registers and
// compute, in the layout of fragments that the PTX ISA gives. It forgives less than a device: a
// thread that does not come along, or comes for something else, ends the process, and so does an
// address of the wrong alignment; copies are made when they are waited for.
#pragma once

#include <stdio.h>
#include <stdlib.h>

#define BP_WARPS
struct bp_bf16 {};
struct bp_f16 {};
typedef unsigned long bp_shared;

struct EmulatedLane {
  const char* word;  // what it has come for
  unsigned count;    // how many times, this included
  unsigned a[4], b[2];
  bp_shared at;
  float x;
};
struct EmulatedCopy {
  bp_shared to;
  const void* from;
  bool is_zero;
};
constexpr unsigned kEmulatedThreads = 1024, kEmulatedCopies = 64;
// Of the threads of a block.
struct EmulatedWarps {
  EmulatedLane lanes[2][kEmulatedThreads];  // a thread may be one meeting ahead
  unsigned counts[kEmulatedThreads];
  EmulatedCopy copies[kEmulatedThreads][kEmulatedCopies];
  unsigned begun[kEmulatedThreads], closed[kEmulatedThreads];
};
struct EmulatedWarpsOwner {
  EmulatedWarps* warps = nullptr;
  ~EmulatedWarpsOwner() { free(warps); }
};
static thread_local EmulatedWarpsOwner emulated_warps_owner;

static inline EmulatedWarps& emulated_warps() {
  EmulatedWarps*& warps = emulated_warps_owner.warps;
  if (warps == nullptr) warps = (EmulatedWarps*)calloc(1, sizeof *warps);
  return *warps;
}
static inline unsigned emulated_thread() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
static inline void emulated_begin_warps() {
  EmulatedWarps* const warps = emulated_warps_owner.warps;
  if (warps == nullptr) return;
  const unsigned thread = emulated_thread();
  warps->counts[thread] = warps->begun[thread] = warps->closed[thread] = 0;
  warps->lanes[0][thread].count = warps->lanes[1][thread].count = 0;
}
static inline void emulated_refuse(const char* word, const char* why) {
  fprintf(stderr, "emulated CUDA: %s: %s\n", word, why);
  abort();
}

// The lanes of the warp, when all have come.
static inline const EmulatedLane* emulated_meet(EmulatedLane own) {
  EmulatedWarps& warps = emulated_warps();
  const EmulatedIndex self = threadIdx;
  const unsigned thread = emulated_thread(), first = thread / 32 * 32;
  own.count = ++warps.counts[thread];
  EmulatedLane* const lanes = warps.lanes[own.count % 2];
  lanes[thread] = own;
  emulated_fibres->meet_warp();
  threadIdx = self;
  for (unsigned i = first; i < first + 32; ++i)
    if (lanes[i].count != own.count || lanes[i].word != own.word)
      emulated_refuse(own.word, "not all threads of the warp are here");
  return lanes + first;
}

static inline unsigned bp_block() { return blockIdx.x; }
static inline bp_shared bp_shared_at(const void* p) { return (bp_shared)p; }

static inline float emulated_of_bits(bp_bf16, unsigned bits) {
  return emulated_bits<float>(bits << 16);
}
static inline float emulated_of_bits(bp_f16, unsigned bits) {
  const unsigned special = (bits & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
  const float size = special != 0 ? emulated_bits<float>(special | (bits & 0x3ff) << 13)
                                  : emulated_bits<float>((bits & 0x7fff) << 13) * 0x1p112f;
  return (bits & 0x8000) != 0 ? -size : size;
}
static inline unsigned emulated_to_bits(bp_bf16, float x) {
  const unsigned u = emulated_bits<unsigned>(x);
  return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
static inline unsigned emulated_to_bits(bp_f16, float x) { return emulated_to_half((double)x); }

// Register i has of matrix i the elements 2 * (l % 4) + {0, 1} of row l / 4; of its transpose.
static inline void emulated_read_matrices(unsigned (&r)[4], bp_shared at, const char* word,
                                          bool transposed) {
  if (at % 16 != 0) emulated_refuse(word, "the address is no multiple of 16");
  EmulatedLane own = {};
  own.word = word;
  own.at = at;
  const EmulatedLane* const lanes = emulated_meet(own);
  const unsigned lane = emulated_thread() % 32, row = lane / 4, column = lane % 4 * 2;
  for (unsigned i = 0; i < 4; ++i) {
    unsigned halves[2];
    for (unsigned h = 0; h < 2; ++h)
      halves[h] = transposed ? ((const unsigned short*)lanes[i * 8 + column + h].at)[row]
                             : ((const unsigned short*)lanes[i * 8 + row].at)[column + h];
    r[i] = halves[0] | halves[1] << 16;
  }
}
static inline void bp_matrices(unsigned (&r)[4], bp_shared at) {
  emulated_read_matrices(r, at, "ldmatrix", false);
}
static inline void bp_matrices_transposed(unsigned (&r)[4], bp_shared at) {
  emulated_read_matrices(r, at, "ldmatrix.trans", true);
}

// mma.m16n8k16: row and depth of the left factor's register i are l / 4 + i % 2 * 8 and
// 2 * (l % 4) + i / 2 * 8; depth and column of the right one's 2 * (l % 4) + i * 8 and l / 4.
template <class T>
static inline void bp_multiply(T type, float (&c)[4], const unsigned (&a)[4], unsigned b0,
                               unsigned b1) {
  EmulatedLane own = {};
  own.word = "mma";
  for (unsigned i = 0; i < 4; ++i) own.a[i] = a[i];
  own.b[0] = b0;
  own.b[1] = b1;
  const EmulatedLane* const lanes = emulated_meet(own);
  const unsigned lane = emulated_thread() % 32;
  float left[2][16], right[2][16];  // rows l / 4 and 8 more; columns 2 * (l % 4) and one more
  for (unsigned k = 0; k < 16; ++k)
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned holder = k % 8 / 2, shift = k % 2 * 16;
      left[i][k] =
          emulated_of_bits(type, lanes[lane / 4 * 4 + holder].a[i + k / 8 * 2] >> shift & 0xffff);
      right[i][k] =
          emulated_of_bits(type, lanes[(lane % 4 * 2 + i) * 4 + holder].b[k / 8] >> shift & 0xffff);
    }
  for (unsigned e = 0; e < 4; ++e) {
    float sum = 0;
    for (unsigned k = 0; k < 16; ++k) sum += left[e / 2][k] * right[e % 2][k];
    c[e] += sum;
  }
}
template <class T>
static inline unsigned bp_pack(T type, float low, float high) {
  return emulated_to_bits(type, low) | emulated_to_bits(type, high) << 16;
}
static inline float bp_exp2(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0 : y;
}
static inline float bp_of_lane_xor(float x, int mask) {
  EmulatedLane own = {};
  own.word = "shfl.bfly";
  own.x = x;
  return emulated_meet(own)[emulated_thread() % 32 ^ (unsigned)mask].x;
}

static inline void bp_put_16(bp_shared at, uint4 x) {
  if (at % 16 != 0) emulated_refuse("st.shared.v4", "the address is no multiple of 16");
  memcpy((void*)at, &x, 16);
}
static inline void bp_copy_16(bp_shared to, const void* from, bool is_zero) {
  if (to % 16 != 0 || (bp_shared)from % 16 != 0)
    emulated_refuse("cp.async", "an address is no multiple of 16");
  EmulatedWarps& warps = emulated_warps();
  const unsigned thread = emulated_thread();
  if (warps.begun[thread] == kEmulatedCopies) emulated_refuse("cp.async", "too many copies");
  warps.copies[thread][warps.begun[thread]++] = {to, from, is_zero};
}
static inline void bp_close_copies() {
  EmulatedWarps& warps = emulated_warps();
  warps.closed[emulated_thread()] = warps.begun[emulated_thread()];
}
static inline void bp_wait_for_copies() {
  EmulatedWarps& warps = emulated_warps();
  const unsigned thread = emulated_thread();
  EmulatedCopy* const copies = warps.copies[thread];
  const unsigned closed = warps.closed[thread];
  for (unsigned i = 0; i < closed; ++i) {
    if (copies[i].is_zero)
      memset((void*)copies[i].to, 0, 16);
    else
      memcpy((void*)copies[i].to, copies[i].from, 16);
  }
  memmove(copies, copies + closed, (warps.begun[thread] - closed) * sizeof *copies);
  warps.begun[thread] -= closed;
  warps.closed[thread] = 0;
}
