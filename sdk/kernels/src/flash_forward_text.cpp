#include "flash_attention_text.hpp"

#include <string_view>

namespace backplane::kernels {
namespace {

// After FlashAttention-2: a block of four warps computes rows of one head's result, MT * 16 by each
// warp, over N keys at a time.
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
  const bool pairs = bp_has_pairs<typename CUT::M>(a.mask, mask);
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
  bp_clear(o);
  BP_UNROLL
  for (int m = 0; m < MT; ++m) {
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
      bp_clear(s);
      bp_add_scores<T, D, MT, N>(
          s,
          [&](int k, uint(&rows)[MT][4]) {
            BP_UNROLL
            for (int m = 0; m < MT; ++m) {
              if (!kHeld) {
                bp_matrices(rows[m], bp_place<D>(left, own_queries, m, k));
                continue;
              }
              BP_UNROLL
              for (int i = 0; i < 4; ++i) rows[m][i] = q[kHeld ? m : 0][kHeld ? k : 0][i];
            }
          },
          right, step_keys);
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
      bp_add_mask<typename CUT::M>(s, a.mask, mask, pairs, a.scale, row, start + pair, a.queries,
                                   a.keys);
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
    bp_add_weighted<T, D, MT, N>(o, s, left, step_values);
  }

  bp_wait_for_copies();  // there are some where there was no step
  const bp_attention_place to = bp_place_of_block(tiles, a.batches, a.heads, a.together);
  ushort* const out = a.out.data + to.batch * a.out.batch + to.head * a.out.head;
  BP_UNROLL
  for (int m = 0; m < MT; ++m) {
    BP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = row + m * 16 + h * 8;
      const float total = bp_quad_sum(sum[m][h]);
      if (r >= a.queries) continue;
      const float share = total == 0.0f ? 0.0f : 1.0f / total;  // 0: nothing to attend to
      bp_put_row<T>(a.out, out + r * a.out.row, o[m], h, share, a.depth);
      if (a.sums != 0 && lane % 4 == 0)
        a.sums[to.batch * a.sums_batch + to.head * a.sums_head + r * a.sums_row] =
            total == 0.0f ? -BP_INFINITY : top[m][h] * factor * BP_LN_2 + logf(total);
    }
  }
}
#endif
)";

}  // namespace

std::string forward_attention_text() {
  std::string text = attention_words();
  text += kForward;
  return text;
}

}  // namespace backplane::kernels
