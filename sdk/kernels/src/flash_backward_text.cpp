#include "flash_attention_text.hpp"

#include <string_view>

namespace backplane::kernels {
namespace {

// Gradients by the probabilities that are computed again. A block has rows of two matrices, queries
// with gradients of the result, or keys with values, and goes over columns of the other two: sums
// stay in registers, in an order that does not change.
constexpr std::string_view kBackward = R"(
#ifndef BP_ATTENTION_BACKWARD
#define BP_ATTENTION_BACKWARD
struct bp_attention_gradients {
  bp_attention_side query, key, value, grad;
  bp_attention_side first, second;  // of queries, or of keys and values; data may be null
  bp_attention_mask mask;
  const float* facts;  // of each query: its shift of exponents, and what is subtracted from slopes
  int batches, heads, sharing, queries, keys, depth, together;
  int held_queries;  // rows of facts for each head, even
  float scale, times_log2_e;
};
template <class TYPE, int DEPTH, int TILES, int STEP, int BUFFERS, bool IS_CAUSAL, class MASK,
          bool BY_KEYS>
struct bp_backward_cut {
  typedef TYPE T;
  typedef MASK M;
  static const int D = DEPTH, MT = TILES, N = STEP, kStages = BUFFERS, kThreads = 128,
                   kRowBytes = D * 2, kWarpRows = MT * 16, kRows = kWarpRows * 4;
  static const bool kCausal = IS_CAUSAL, kMasked = !bp_same_type<MASK, bp_no_mask>::value,
                    kByKeys = BY_KEYS;  // rows are keys
  static const int kBytes = 2 * kRows * kRowBytes + kStages * 2 * N * kRowBytes;
};
template <class CUT>
BP_FN void bp_go_back(const bp_attention_gradients& a, bp_shared memory) {
  typedef typename CUT::T T;
  const int D = CUT::D, MT = CUT::MT, N = CUT::N, kStages = CUT::kStages, kThreads = CUT::kThreads,
            kRowBytes = CUT::kRowBytes, kWarpRows = CUT::kWarpRows, kRows = CUT::kRows;
  const bool kCausal = CUT::kCausal, kMasked = CUT::kMasked, kByKeys = CUT::kByKeys;
  const int rows = kByKeys ? a.keys : a.queries, columns = kByKeys ? a.queries : a.keys;
  const int tiles = (rows + kRows - 1) / kRows;
  const bp_attention_place place = bp_place_of_block(tiles, a.batches, a.heads, a.together);
  // Of causal rows, early keys and late queries have the most to do.
  const int first = (kByKeys ? tiles - 1 - place.tile : place.tile) * kRows;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int own = first + warp * kWarpRows, row = own + lane / 4, pair = lane % 4 * 2;

  const bp_attention_side& x1 = kByKeys ? a.key : a.query;
  const bp_attention_side& x2 = kByKeys ? a.value : a.grad;
  const bp_attention_side& y1 = kByKeys ? a.query : a.key;
  const bp_attention_side& y2 = kByKeys ? a.grad : a.value;
  const int shared_head = place.head / a.sharing, x_head = kByKeys ? shared_head : place.head,
            y_head = kByKeys ? place.head : shared_head;
  const ushort* const y1_data = y1.data + place.batch * y1.batch + y_head * y1.head;
  const ushort* const y2_data = y2.data + place.batch * y2.batch + y_head * y2.head;
  const bool y1_whole = bp_is_whole(y1, y1_data, a.depth),
             y2_whole = bp_is_whole(y2, y2_data, a.depth);
  const bp_shared x1_tile = memory, x2_tile = memory + kRows * kRowBytes,
                  y_tiles = x2_tile + kRows * kRowBytes;
  {
    const ushort* const x1_data =
        x1.data + place.batch * x1.batch + x_head * x1.head + first * x1.row;
    const ushort* const x2_data =
        x2.data + place.batch * x2.batch + x_head * x2.head + first * x2.row;
    bp_load_rows<kRows, D, kThreads>(x1_tile, x1_data, x1, rows - first, a.depth,
                                     bp_is_whole(x1, x1_data, a.depth));
    bp_load_rows<kRows, D, kThreads>(x2_tile, x2_data, x2, rows - first, a.depth,
                                     bp_is_whole(x2, x2_data, a.depth));
  }
  const auto load = [&](int step, int stage) {
    const bp_shared to = y_tiles + stage * (2 * N * kRowBytes);
    bp_load_rows<N, D, kThreads>(to, y1_data + step * (N * y1.row), y1, columns - step * N, a.depth,
                                 y1_whole);
    bp_load_rows<N, D, kThreads>(to + N * kRowBytes, y2_data + step * (N * y2.row), y2,
                                 columns - step * N, a.depth, y2_whole);
  };
  const int begin = kByKeys && kCausal ? first / N : 0;
  const int end = ((!kByKeys && kCausal ? BP_MIN(columns, first + kRows) : columns) + N - 1) / N;
  const uchar* const mask = a.mask.data + place.batch * a.mask.batch + place.head * a.mask.head;
  bp_attention_mask turned = a.mask;  // as rows and columns are here
  if (kByKeys) {
    turned.row = a.mask.column;
    turned.column = (int)a.mask.row;
  }
  const bool pairs = bp_has_pairs<typename CUT::M>(turned, mask);
  const float* const facts =
      a.facts + ((long)place.batch * a.heads + place.head) * a.held_queries * 2;
  float shift[MT][2], less[MT][2];  // of rows
  if (!kByKeys) {
    BP_UNROLL
    for (int m = 0; m < MT; ++m) {
      BP_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int r = row + m * 16 + h * 8;
        shift[m][h] = r < rows ? facts[r * 2L] : BP_INFINITY;
        less[m][h] = r < rows ? facts[r * 2L + 1] : 0.0f;
      }
    }
  }
  const bp_reader<D> left = bp_reader_of<D>(true), right = bp_reader_of<D>(false);
  const bp_shared own_tile = warp * (kWarpRows * kRowBytes);
  const float factor = kMasked ? 1.0f : a.times_log2_e;  // to powers of 2
  float o1[MT][D / 8][4], o2[kByKeys ? MT : 1][kByKeys ? D / 8 : 1][4];
  bp_clear(o1);
  bp_clear(o2);
  if (begin < end) load(begin, 0);
  bp_close_copies();

  BP_ONE_BY_ONE
  for (int step = begin; step < end; ++step) {
    const int stage = kStages == 2 ? (step - begin) % 2 : 0, start = step * N;
    const bp_shared y1_tile = y_tiles + stage * (2 * N * kRowBytes),
                    y2_tile = y1_tile + N * kRowBytes;
    // The step's tiles are there, and all threads are done with those of the step before.
    bp_wait_for_copies();
    BP_BARRIER;
    if (kStages == 2 && step + 1 < end) load(step + 1, 1 - stage);
    bp_close_copies();
    const bool idle = kCausal && (kByKeys ? start + N - 1 < own : start > own + kWarpRows - 1);
    if (!idle) {
      float s[MT][N / 8][4];
      bp_clear(s);
      bp_add_scores<T, D, MT, N>(
          s,
          [&](int k, uint(&read)[MT][4]) {
            BP_UNROLL
            for (int m = 0; m < MT; ++m)
              bp_matrices(read[m], bp_place<D>(left, x1_tile + own_tile, m, k));
          },
          right, y1_tile);
      if (kMasked)
        bp_add_mask<typename CUT::M>(s, turned, mask, pairs, a.times_log2_e, row, start + pair,
                                     rows, columns);
      const bool cuts = kByKeys ? kCausal && start < own + kWarpRows - 1
                                : start + N > columns || (kCausal && start + N - 1 > own);
      BP_UNROLL
      for (int m = 0; m < MT; ++m) {
        if (cuts && kByKeys) bp_cut_early(s[m], row + m * 16, start + pair);
        if (cuts && !kByKeys) bp_cut_scores<kCausal>(s[m], row + m * 16, start + pair, columns);
      }
      float slopes[MT][N / 8][4];
      bp_clear(slopes);
      bp_add_scores<T, D, MT, N>(
          slopes,
          [&](int k, uint(&read)[MT][4]) {
            BP_UNROLL
            for (int m = 0; m < MT; ++m)
              bp_matrices(read[m], bp_place<D>(left, x2_tile + own_tile, m, k));
          },
          right, y2_tile);
      BP_UNROLL
      for (int n = 0; n < N / 8; ++n) {
        float of_columns[4];  // shift and what is subtracted, of two columns
        if (kByKeys) {
          const int c = start + n * 8 + pair;
          const uint4 bits = *(const uint4*)(facts + c * 2L);
          of_columns[0] = c < columns ? __uint_as_float(bits.x) : BP_INFINITY;
          of_columns[1] = c < columns ? __uint_as_float(bits.y) : 0.0f;
          of_columns[2] = c + 1 < columns ? __uint_as_float(bits.z) : BP_INFINITY;
          of_columns[3] = c + 1 < columns ? __uint_as_float(bits.w) : 0.0f;
        }
        BP_UNROLL
        for (int m = 0; m < MT; ++m) {
          BP_UNROLL
          for (int e = 0; e < 4; ++e) {
            const float p = bp_exp2(
                BP_FMA(s[m][n][e], factor, -(kByKeys ? of_columns[e % 2 * 2] : shift[m][e / 2])));
            s[m][n][e] = p;
            slopes[m][n][e] =
                p * (slopes[m][n][e] - (kByKeys ? of_columns[e % 2 * 2 + 1] : less[m][e / 2]));
          }
        }
      }
      if constexpr (kByKeys) bp_add_weighted<T, D, MT, N>(o2, s, left, y2_tile);
      bp_add_weighted<T, D, MT, N>(o1, slopes, left, y1_tile);
    }
    if (kStages == 1) {
      BP_BARRIER;
      if (step + 1 < end) load(step + 1, 0);
      bp_close_copies();
    }
  }

  bp_wait_for_copies();  // there are some where there was no step
  const bp_attention_place to = bp_place_of_block(tiles, a.batches, a.heads, a.together);
  BP_UNROLL
  for (int m = 0; m < MT; ++m) {
    BP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = row + m * 16 + h * 8;
      if (r >= rows) continue;
      if (a.first.data != 0)
        bp_put_row<T>(
            a.first,
            a.first.data + to.batch * a.first.batch + to.head * a.first.head + r * a.first.row,
            o1[m], h, a.scale, a.depth);
      if constexpr (kByKeys) {
        if (a.second.data != 0)
          bp_put_row<T>(a.second,
                        a.second.data + to.batch * a.second.batch + to.head * a.second.head +
                            r * a.second.row,
                        o2[m], h, 1.0f, a.depth);
      }
    }
  }
}
#endif
)";

}  // namespace

std::string backward_attention_text() {
  std::string text = attention_words();
  text += kBackward;
  return text;
}

}  // namespace backplane::kernels
