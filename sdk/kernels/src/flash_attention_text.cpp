#include "flash_attention_text.hpp"

#include <string_view>

namespace backplane::kernels {
namespace {

// After FlashAttention-2: a block of four warps computes rows of one head's result, MT * 16 by each
// warp, over N keys at a time. Tiles lie in shared memory in chunks of eight elements, turned
// within their row so that eight rows of one column of chunks are in different banks.
constexpr std::string_view kCommon = R"(
#ifndef BP_ATTENTION
#define BP_ATTENTION
struct bp_attention_side {
  ushort* data;
  long batch, head, row, column;
};
struct bp_attention_mask {  // strides in bytes
  const uchar* data;
  long batch, head, row;
  int column;
};
#define BP_LOG2_E 1.4426950408889634f
#define BP_LN_2 0.69314718055994531f
template <class A, class B>
struct bp_same_type {
  static const bool value = false;
};
template <class A>
struct bp_same_type<A, A> {
  static const bool value = true;
};

template <int D>
struct bp_rows {
  static const int kChunks = D / 8,
                   kShift = kChunks % 8 == 0   ? 0
                            : kChunks % 4 == 0 ? 1
                                               : 2,
                   kTurns = kChunks % 8 == 0   ? 7
                            : kChunks % 4 == 0 ? 3
                                               : 1;
};
// Where lane l of a warp finds the row of its matrix: of 16 rows and two chunks, which bp_matrices
// reads, rows first or chunks first.
template <int D>
struct bp_reader {
  bp_shared row;
  int turn;
};
template <int D>
BP_FN bp_reader<D> bp_reader_of(bool rows_first) {
  const int lane = threadIdx.x % 32, high = lane / 16, middle = lane / 8 % 2;
  const int row = (rows_first ? middle : high) * 8 + lane % 8;
  bp_reader<D> r;
  r.row = row * (D * 2);
  r.turn = (rows_first ? high : middle) ^ (row >> bp_rows<D>::kShift & bp_rows<D>::kTurns);
  return r;
}
// Of rows [16 * i, 16 * i + 16) and chunks 2 * k, 2 * k + 1.
template <int D>
BP_FN bp_shared bp_place(const bp_reader<D>& r, bp_shared tile, int i, int k) {
  return tile + r.row + i * (16 * D * 2) + ((2 * k ^ r.turn) * 16);
}

// Rows beyond `rows` and columns beyond `depth` are zeros. `whole`: chunks may be copied as they
// lie.
template <int ROWS, int D, int THREADS>
BP_FN void bp_load_rows(bp_shared to, const ushort* from, const bp_attention_side& side, int rows,
                        int depth, bool whole) {
  const int kChunks = bp_rows<D>::kChunks, kAtOnce = THREADS / kChunks,
            kSteps = (ROWS + kAtOnce - 1) / kAtOnce;
  const int first = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
  if (THREADS % kChunks != 0 && first >= kAtOnce) return;
  if (whole) {
    const ushort* source = from + first * side.row + chunk * 8;
    const int inside = chunk * 8 < depth ? rows - first : 0;
    BP_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      const int row = first + k * kAtOnce;
      if (ROWS % kAtOnce != 0 && row >= ROWS) break;
      const bool outside = k * kAtOnce >= inside;
      bp_copy_16(
          to + row * (D * 2) + (chunk ^ (row >> bp_rows<D>::kShift & bp_rows<D>::kTurns)) * 16,
          outside ? from : source, outside);
      source += kAtOnce * side.row;
    }
    return;
  }
  BP_ONE_BY_ONE
  for (int row = first; row < ROWS; row += kAtOnce) {
    uint words[4];
    BP_UNROLL
    for (int w = 0; w < 4; ++w) {
      const int column = chunk * 8 + w * 2;
      const ushort* const source = from + row * side.row + column * side.column;
      const uint low = row < rows && column < depth ? source[0] : 0,
                 high = row < rows && column + 1 < depth ? source[side.column] : 0;
      words[w] = low | high << 16;
    }
    uint4 x;
    x.x = words[0];
    x.y = words[1];
    x.z = words[2];
    x.w = words[3];
    bp_put_16(to + row * (D * 2) + (chunk ^ (row >> bp_rows<D>::kShift & bp_rows<D>::kTurns)) * 16,
              x);
  }
}
// Whether chunks of its rows may be copied as they lie.
BP_FN bool bp_is_whole(const bp_attention_side& s, const ushort* data, int depth) {
  return s.column == 1 && s.row % 8 == 0 && depth % 8 == 0 && ((ulong)data & 15) == 0;
}

// What a mask makes of a score; places in bytes.
struct bp_no_mask {};
struct bp_bool_mask {};
struct bp_float_mask {};
BP_FN float bp_masked(bp_no_mask, float x, const uchar*, int) { return x; }
BP_FN float bp_masked(bp_bool_mask, float x, const uchar* data, int at) {
  return data[at] != 0 ? x : -BP_INFINITY;
}
BP_FN float bp_masked(bp_bf16, float x, const uchar* data, int at) {
  return BP_FMA(bp_from_bf16_1(*(const ushort*)(data + at)), BP_LOG2_E, x);
}
BP_FN float bp_masked(bp_f16, float x, const uchar* data, int at) {
  return BP_FMA(BP_F16_LOAD((const bp_half*)(data + at), 0), BP_LOG2_E, x);
}
BP_FN float bp_masked(bp_float_mask, float x, const uchar* data, int at) {
  return BP_FMA(*(const float*)(data + at), BP_LOG2_E, x);
}
// Scores times log2(e), with what the mask adds.
template <class M, int MT, int N>
BP_FN void bp_add_mask(float (&s)[MT][N][4], const bp_attention_mask& mask, const uchar* data,
                       float scale, int row, int column, int rows, int columns) {
  const uchar* lines[MT][2];
  BP_UNROLL
  for (int m = 0; m < MT; ++m) {
    BP_UNROLL
    for (int h = 0; h < 2; ++h)
      lines[m][h] = data + BP_MIN(row + m * 16 + h * 8, rows - 1) * mask.row;
  }
  BP_UNROLL
  for (int n = 0; n < N; ++n) {
    BP_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int c = BP_MIN(column + n * 8 + e, columns - 1) * mask.column;
      BP_UNROLL
      for (int m = 0; m < MT; ++m) {
        BP_UNROLL
        for (int h = 0; h < 2; ++h) {
          float& x = s[m][n][h * 2 + e];
          x = bp_masked(M(), x * scale, lines[m][h], c);
        }
      }
    }
  }
}
// Scores beyond the last key, or of keys that causal rows do not see.
template <bool CAUSAL, int N>
BP_FN void bp_cut_scores(float (&s)[N][4], int row, int column, int columns) {
  BP_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int end = CAUSAL ? BP_MIN(columns, row + h * 8 + 1) : columns;
    BP_UNROLL
    for (int n = 0; n < N; ++n) {
      BP_UNROLL
      for (int e = 0; e < 2; ++e)
        if (column + n * 8 + e >= end) s[n][h * 2 + e] = -BP_INFINITY;
    }
  }
}
BP_FN float bp_quad_max(float x) {
  x = fmaxf(x, bp_of_lane_xor(x, 1));
  return fmaxf(x, bp_of_lane_xor(x, 2));
}
BP_FN float bp_quad_sum(float x) {
  x += bp_of_lane_xor(x, 1);
  return x + bp_of_lane_xor(x, 2);
}

// Which tile of which head a block computes: heads whose keys and values stay in the device's cache
// together, their long rows first.
struct bp_attention_place {
  int tile, batch, head;
};
BP_FN bp_attention_place bp_place_of_block(int tiles, int batches, int heads, int together) {
  const uint set = blockIdx.x / (uint)(tiles * together), first = set * together,
             in = blockIdx.x % (uint)(tiles * together);
  const uint size = BP_MIN((uint)together, (uint)(batches * heads) - first);
  const uint head = first + in % size;
  bp_attention_place p;
  p.tile = tiles - 1 - (int)(in / size);
  p.batch = head / heads;
  p.head = head % heads;
  return p;
}
#endif
)";

constexpr std::string_view kForward = R"(
#ifndef BP_ATTENTION_FORWARD
#define BP_ATTENTION_FORWARD
struct bp_attention {
  bp_attention_side query, key, value, out;
  bp_attention_mask mask;
  float* sums;  // logarithms of the rows' sums; null: not wanted
  long sums_batch, sums_head, sums_row;
  int batches, heads, sharing, queries, keys, depth, together;
  float scale;  // times log2(e)
};
template <class TYPE, int DEPTH, int TILES, int STEP, int BUFFERS, bool IS_CAUSAL, class MASK>
struct bp_forward_cut {
  typedef TYPE T;
  typedef MASK M;
  static const int D = DEPTH, MT = TILES, N = STEP, kStages = BUFFERS, kThreads = 128,
                   kRowBytes = D * 2, kWarpRows = MT * 16, kRows = kWarpRows * 4;
  static const bool kCausal = IS_CAUSAL, kMasked = !bp_same_type<MASK, bp_no_mask>::value,
                    kHeld = D <= 64;  // queries stay in registers
  static const int kBytes = kRows * kRowBytes + kStages * 2 * N * kRowBytes;
};
template <class CUT>
BP_FN void bp_attend(const bp_attention& a, bp_shared memory) {
  typedef typename CUT::T T;
  const int D = CUT::D, MT = CUT::MT, N = CUT::N, kStages = CUT::kStages, kThreads = CUT::kThreads,
            kRowBytes = CUT::kRowBytes, kWarpRows = CUT::kWarpRows, kRows = CUT::kRows;
  const bool kCausal = CUT::kCausal, kMasked = CUT::kMasked, kHeld = CUT::kHeld;
  const int tiles = (a.queries + kRows - 1) / kRows;
  const bp_attention_place place = bp_place_of_block(tiles, a.batches, a.heads, a.together);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = place.tile * kRows, own = first + warp * kWarpRows;  // rows
  const int row = own + lane / 4, pair = lane % 4 * 2;
  const int shared_head = place.head / a.sharing;
  const ushort* const query =
      a.query.data + place.batch * a.query.batch + place.head * a.query.head + first * a.query.row;
  const ushort* const key = a.key.data + place.batch * a.key.batch + shared_head * a.key.head;
  const ushort* const value =
      a.value.data + place.batch * a.value.batch + shared_head * a.value.head;
  const bool whole_query = bp_is_whole(a.query, query, a.depth),
             whole_key = bp_is_whole(a.key, key, a.depth),
             whole_value = bp_is_whole(a.value, value, a.depth);
  const uchar* const mask = a.mask.data + place.batch * a.mask.batch + place.head * a.mask.head;
  const bp_shared queries = memory, keys = memory + kRows * kRowBytes,
                  values = keys + kStages * N * kRowBytes;
  const int limit = kCausal ? BP_MIN(a.keys, first + kRows) : a.keys, steps = (limit + N - 1) / N;
  const auto load_keys = [&](int step, int stage) {
    bp_load_rows<N, D, kThreads>(keys + stage * (N * kRowBytes), key + step * (N * a.key.row),
                                 a.key, a.keys - step * N, a.depth, whole_key);
  };
  const auto load_values = [&](int step, int stage) {
    bp_load_rows<N, D, kThreads>(values + stage * (N * kRowBytes), value + step * (N * a.value.row),
                                 a.value, a.keys - step * N, a.depth, whole_value);
  };
  const bp_reader<D> left = bp_reader_of<D>(true), right = bp_reader_of<D>(false);
  const bp_shared own_queries = queries + warp * (kWarpRows * kRowBytes);

  uint q[kHeld ? MT : 1][kHeld ? D / 16 : 1][4];
  float o[MT][D / 8][4], top[MT][2], sum[MT][2];
  BP_UNROLL
  for (int m = 0; m < MT; ++m) {
    BP_UNROLL
    for (int d = 0; d < D / 8; ++d)
      for (int e = 0; e < 4; ++e) o[m][d][e] = 0.0f;
    top[m][0] = top[m][1] = -BP_INFINITY;
    sum[m][0] = sum[m][1] = 0.0f;
  }
  bp_load_rows<kRows, D, kThreads>(queries, query, a.query, a.queries - first, a.depth,
                                   whole_query);
  load_keys(0, 0);
  if (kStages == 2) load_values(0, 0);
  bp_close_copies();
  const float factor = kMasked ? 1.0f : a.scale;  // to powers of 2

  BP_ONE_BY_ONE
  for (int step = 0; step < steps; ++step) {
    const int stage = kStages == 2 ? step % 2 : 0, start = step * N;
    const bp_shared step_keys = keys + stage * (N * kRowBytes),
                    step_values = values + stage * (N * kRowBytes);
    // The step's tiles are there, and all threads are done with those of the step before.
    bp_wait_for_copies();
    BP_BARRIER;
    if (kStages == 2) {
      if (step + 1 < steps) {
        load_keys(step + 1, 1 - stage);
        load_values(step + 1, 1 - stage);
      }
    } else {
      load_values(step, 0);
    }
    bp_close_copies();
    if (kHeld && step == 0) {
      BP_UNROLL
      for (int m = 0; m < MT; ++m) {
        BP_UNROLL
        for (int k = 0; k < D / 16; ++k)
          bp_matrices(q[kHeld ? m : 0][kHeld ? k : 0], bp_place<D>(left, own_queries, m, k));
      }
    }
    const bool idle = kCausal && start > own + kWarpRows - 1;
    float s[MT][N / 8][4];
    if (!idle) {
      BP_UNROLL
      for (int m = 0; m < MT; ++m) {
        BP_UNROLL
        for (int n = 0; n < N / 8; ++n)
          for (int e = 0; e < 4; ++e) s[m][n][e] = 0.0f;
      }
      BP_UNROLL
      for (int k = 0; k < D / 16; ++k) {
        uint read[MT][4];
        if (!kHeld) {
          BP_UNROLL
          for (int m = 0; m < MT; ++m) bp_matrices(read[m], bp_place<D>(left, own_queries, m, k));
        }
        BP_UNROLL
        for (int n = 0; n < N / 16; ++n) {
          uint b[4];
          bp_matrices(b, bp_place<D>(right, step_keys, n, k));
          BP_UNROLL
          for (int m = 0; m < MT; ++m) {
            bp_multiply(T(), s[m][2 * n], kHeld ? q[kHeld ? m : 0][kHeld ? k : 0] : read[m], b[0],
                        b[1]);
            bp_multiply(T(), s[m][2 * n + 1], kHeld ? q[kHeld ? m : 0][kHeld ? k : 0] : read[m],
                        b[2], b[3]);
          }
        }
      }
    }
    if (kStages == 1) {  // as above, of the values and the keys
      bp_wait_for_copies();
      BP_BARRIER;
      if (step + 1 < steps) load_keys(step + 1, 0);
      bp_close_copies();
    }
    if (idle) continue;
    const bool cuts = start + N > a.keys || (kCausal && start + N - 1 > own);
    if (kMasked)
      bp_add_mask<typename CUT::M>(s, a.mask, mask, a.scale, row, start + pair, a.queries, a.keys);
    BP_UNROLL
    for (int m = 0; m < MT; ++m) {
      if (cuts) bp_cut_scores<kCausal>(s[m], row + m * 16, start + pair, a.keys);
    }
    BP_UNROLL
    for (int m = 0; m < MT; ++m) {
      BP_UNROLL
      for (int h = 0; h < 2; ++h) {  // the rows of the thread
        float most = BP_MAX(s[m][0][2 * h], s[m][0][2 * h + 1]);
        BP_UNROLL
        for (int n = 1; n < N / 8; ++n)
          most = fmaxf(most, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
        most = fmaxf(top[m][h], bp_quad_max(most));
        const float shift = most == -BP_INFINITY ? 0.0f : most * factor;
        const float fade = bp_exp2(top[m][h] * factor - shift);
        top[m][h] = most;
        float part = 0.0f;
        BP_UNROLL
        for (int n = 0; n < N / 8; ++n) {
          BP_UNROLL
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            s[m][n][e] = bp_exp2(BP_FMA(s[m][n][e], factor, -shift));
            part += s[m][n][e];
          }
        }
        sum[m][h] = sum[m][h] * fade + part;
        BP_UNROLL
        for (int d = 0; d < D / 8; ++d) {
          o[m][d][2 * h] *= fade;
          o[m][d][2 * h + 1] *= fade;
        }
      }
    }
    BP_UNROLL
    for (int n = 0; n < N / 16; ++n) {
      uint p[MT][4];
      BP_UNROLL
      for (int m = 0; m < MT; ++m) {
        BP_UNROLL
        for (int i = 0; i < 4; ++i)
          p[m][i] =
              bp_pack(T(), s[m][2 * n + i / 2][i % 2 * 2], s[m][2 * n + i / 2][i % 2 * 2 + 1]);
      }
      BP_UNROLL
      for (int d = 0; d < D / 16; ++d) {
        uint b[4];
        bp_matrices_transposed(b, bp_place<D>(left, step_values, n, d));
        BP_UNROLL
        for (int m = 0; m < MT; ++m) {
          bp_multiply(T(), o[m][2 * d], p[m], b[0], b[1]);
          bp_multiply(T(), o[m][2 * d + 1], p[m], b[2], b[3]);
        }
      }
    }
  }

  ushort* const out = a.out.data + place.batch * a.out.batch + place.head * a.out.head;
  const bool pairs = a.out.column == 1 && a.out.row % 2 == 0 && ((ulong)out & 3) == 0;
  BP_UNROLL
  for (int m = 0; m < MT; ++m) {
    BP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = row + m * 16 + h * 8;
      const float total = bp_quad_sum(sum[m][h]);
      if (r >= a.queries) continue;
      const float share = total == 0.0f ? 0.0f : 1.0f / total;  // 0: nothing to attend to
      BP_UNROLL
      for (int d = 0; d < D / 8; ++d) {
        const int column = d * 8 + pair;
        const uint word = bp_pack(T(), o[m][d][2 * h] * share, o[m][d][2 * h + 1] * share);
        ushort* const at = out + r * a.out.row + column * a.out.column;
        if (pairs && column + 1 < a.depth) {
          *(uint*)at = word;
        } else {
          if (column < a.depth) at[0] = (ushort)word;
          if (column + 1 < a.depth) at[a.out.column] = (ushort)(word >> 16);
        }
      }
      if (a.sums != 0 && lane % 4 == 0)
        a.sums[place.batch * a.sums_batch + place.head * a.sums_head + r * a.sums_row] =
            total == 0.0f ? -BP_INFINITY : top[m][h] * factor * BP_LN_2 + logf(total);
    }
  }
}
#endif
)";

}  // namespace

std::string forward_attention_text() {
  std::string text(kernelgen::matrix_words());
  text += kCommon;
  text += kForward;
  return text;
}

}  // namespace backplane::kernels
