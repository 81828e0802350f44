#include "flash_attention_text.hpp"

#include <string_view>

namespace backplane::kernels {
namespace {

// Tiles lie in shared memory in chunks of eight elements, turned within their row so that eight
// rows of one column of chunks are in different banks. Rows of a tile are split over the warps of a
// block; columns go over all of them.
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
    const int apart = (int)side.row;  // offsets in a tile are 32 bits
    uint source = first * apart + chunk * 8;
    const int inside = chunk * 8 < depth ? rows - first : 0;
    BP_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      const int row = first + k * kAtOnce;
      if (ROWS % kAtOnce != 0 && row >= ROWS) break;
      const bool outside = k * kAtOnce >= inside;
      bp_copy_16(
          to + row * (D * 2) + (chunk ^ (row >> bp_rows<D>::kShift & bp_rows<D>::kTurns)) * 16,
          outside ? from : from + source, outside);
      source += kAtOnce * apart;
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

// What a mask makes of a score, of an element or of two side by side.
struct bp_no_mask {
  static const int kBytes = 1;
};
struct bp_bool_mask {
  static const int kBytes = 1;
};
struct bp_float_mask {
  static const int kBytes = 4;
};
template <class T>
struct bp_half_mask {
  static const int kBytes = 2;
};
BP_FN float bp_half_of(bp_bf16, ushort bits) { return bp_from_bf16_1(bits); }
BP_FN float bp_half_of(bp_f16, ushort bits) { return BP_F16_LOAD((const bp_half*)&bits, 0); }
BP_FN void bp_mask_one(bp_no_mask, float&, const uchar*) {}
BP_FN void bp_mask_two(bp_no_mask, float&, float&, const uchar*) {}
BP_FN void bp_mask_one(bp_bool_mask, float& x, const uchar* at) {
  if (*at == 0) x = -BP_INFINITY;
}
BP_FN void bp_mask_two(bp_bool_mask, float& x, float& y, const uchar* at) {
  const ushort both = *(const ushort*)at;
  if ((both & 255) == 0) x = -BP_INFINITY;
  if (both >> 8 == 0) y = -BP_INFINITY;
}
template <class T>
BP_FN void bp_mask_one(bp_half_mask<T>, float& x, const uchar* at) {
  x = BP_FMA(bp_half_of(T(), *(const ushort*)at), BP_LOG2_E, x);
}
template <class T>
BP_FN void bp_mask_two(bp_half_mask<T>, float& x, float& y, const uchar* at) {
  const uint both = *(const uint*)at;
  x = BP_FMA(bp_half_of(T(), (ushort)both), BP_LOG2_E, x);
  y = BP_FMA(bp_half_of(T(), (ushort)(both >> 16)), BP_LOG2_E, y);
}
BP_FN void bp_mask_one(bp_float_mask, float& x, const uchar* at) {
  x = BP_FMA(*(const float*)at, BP_LOG2_E, x);
}
BP_FN void bp_mask_two(bp_float_mask, float& x, float& y, const uchar* at) {
  const uint2 both = *(const uint2*)at;
  x = BP_FMA(__uint_as_float(both.x), BP_LOG2_E, x);
  y = BP_FMA(__uint_as_float(both.y), BP_LOG2_E, y);
}
// Whether two elements side by side may be read as one, where the first has an even place.
template <class M>
BP_FN bool bp_has_pairs(const bp_attention_mask& mask, const uchar* data) {
  return mask.column == M::kBytes && (((ulong)data | mask.row) & (2 * M::kBytes - 1)) == 0;
}
// Scores times log2(e), with what the mask adds.
template <class M, int MT, int N>
BP_FN void bp_add_mask(float (&s)[MT][N][4], const bp_attention_mask& mask, const uchar* data,
                       bool pairs, float scale, int row, int column, int rows, int columns) {
  const uchar* lines[MT][2];
  BP_UNROLL
  for (int m = 0; m < MT; ++m) {
    BP_UNROLL
    for (int h = 0; h < 2; ++h)
      lines[m][h] = data + BP_MIN(row + m * 16 + h * 8, rows - 1) * mask.row;
    BP_UNROLL
    for (int n = 0; n < N; ++n) {
      BP_UNROLL
      for (int e = 0; e < 4; ++e) s[m][n][e] *= scale;
    }
  }
  if (pairs && column + N * 8 - 7 < columns) {
    BP_UNROLL
    for (int m = 0; m < MT; ++m) {
      BP_UNROLL
      for (int h = 0; h < 2; ++h) {
        const uchar* const at = lines[m][h] + column * M::kBytes;
        BP_UNROLL
        for (int n = 0; n < N; ++n)
          bp_mask_two(M(), s[m][n][h * 2], s[m][n][h * 2 + 1], at + n * 8 * M::kBytes);
      }
    }
    return;
  }
  BP_UNROLL
  for (int n = 0; n < N; ++n) {
    BP_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int c = BP_MIN(column + n * 8 + e, columns - 1) * mask.column;
      BP_UNROLL
      for (int m = 0; m < MT; ++m) {
        BP_UNROLL
        for (int h = 0; h < 2; ++h) bp_mask_one(M(), s[m][n][h * 2 + e], lines[m][h] + c);
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
// Of keys in rows and queries in columns: queries that come before the key.
template <int N>
BP_FN void bp_cut_early(float (&s)[N][4], int row, int column) {
  BP_UNROLL
  for (int h = 0; h < 2; ++h) {
    BP_UNROLL
    for (int n = 0; n < N; ++n) {
      BP_UNROLL
      for (int e = 0; e < 2; ++e)
        if (column + n * 8 + e < row + h * 8) s[n][h * 2 + e] = -BP_INFINITY;
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

// s += rows * columns^T, over the depth; `rows_of(k, a)` gives the fragments of the rows' chunks.
template <class T, int D, int MT, int N, class ROWS>
BP_FN void bp_add_scores(float (&s)[MT][N / 8][4], const ROWS& rows_of, const bp_reader<D>& right,
                         bp_shared columns) {
  BP_UNROLL
  for (int k = 0; k < D / 16; ++k) {
    uint a[MT][4];
    rows_of(k, a);
    BP_UNROLL
    for (int n = 0; n < N / 16; ++n) {
      uint b[4];
      bp_matrices(b, bp_place<D>(right, columns, n, k));
      BP_UNROLL
      for (int m = 0; m < MT; ++m) {
        bp_multiply(T(), s[m][2 * n], a[m], b[0], b[1]);
        bp_multiply(T(), s[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}
// o += weights * values, over the columns of the weights, which are rounded.
template <class T, int D, int MT, int N>
BP_FN void bp_add_weighted(float (&o)[MT][D / 8][4], const float (&weights)[MT][N / 8][4],
                           const bp_reader<D>& left, bp_shared values) {
  BP_UNROLL
  for (int n = 0; n < N / 16; ++n) {
    uint p[MT][4];
    BP_UNROLL
    for (int m = 0; m < MT; ++m) {
      BP_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float(&w)[4] = weights[m][2 * n + i / 2];
        p[m][i] = bp_pack(T(), w[i % 2 * 2], w[i % 2 * 2 + 1]);
      }
    }
    BP_UNROLL
    for (int d = 0; d < D / 16; ++d) {
      uint b[4];
      bp_matrices_transposed(b, bp_place<D>(left, values, n, d));
      BP_UNROLL
      for (int m = 0; m < MT; ++m) {
        bp_multiply(T(), o[m][2 * d], p[m], b[0], b[1]);
        bp_multiply(T(), o[m][2 * d + 1], p[m], b[2], b[3]);
      }
    }
  }
}
template <int A, int B>
BP_FN void bp_clear(float (&x)[A][B][4]) {
  BP_UNROLL
  for (int i = 0; i < A; ++i) {
    BP_UNROLL
    for (int j = 0; j < B; ++j) x[i][j][0] = x[i][j][1] = x[i][j][2] = x[i][j][3] = 0.0f;
  }
}
// Half `h` of fragments, a row of each quad, times `factor`.
template <class T, int N>
BP_FN void bp_put_row(const bp_attention_side& side, ushort* row, const float (&x)[N][4], int h,
                      float factor, int depth) {
  const int pair = threadIdx.x % 4 * 2;
  const bool pairs = side.column == 1 && ((ulong)row & 3) == 0;
  BP_UNROLL
  for (int d = 0; d < N; ++d) {
    const int column = d * 8 + pair;
    const uint word = bp_pack(T(), x[d][2 * h] * factor, x[d][2 * h + 1] * factor);
    ushort* const at = row + column * side.column;
    if (pairs && column + 1 < depth) {
      *(uint*)at = word;
    } else {
      if (column < depth) at[0] = (ushort)word;
      if (column + 1 < depth) at[side.column] = (ushort)(word >> 16);
    }
  }
}

// Which tile of which head a block computes: heads whose keys and values stay in the device's cache
// together, their long rows first.
struct bp_attention_place {
  int tile, batch, head;
};
BP_FN bp_attention_place bp_place_of_block(int tiles, int batches, int heads, int together) {
  const uint block = bp_block(), set = block / (uint)(tiles * together), first = set * together,
             in = block % (uint)(tiles * together);
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

}  // namespace

std::string attention_words() {
  std::string text(kernelgen::matrix_words());
  text += kCommon;
  return text;
}

}  // namespace backplane::kernels
