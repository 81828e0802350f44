// cuBLASLt on the emulated device: sums in double, one after the other. An algorithm that was
// chosen for aligned addresses refuses others, and all of its workspace is written.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "plugins/cuda/testing/emulated_device.h"
#include "plugins/cuda/testing/emulated_half.h"

namespace backplane::cuda {

struct BlasObject {};
struct BlasDescriptionObject {
  bool transpose_left = false, transpose_right = false, has_bias = false;
  const void* bias = nullptr;
  int bias_type = -1;  // as the result's
};
// Column after column.
struct BlasLayoutObject {
  int type = kBlasFloat32;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t pitch = 0;
  std::int32_t batch = 1;
  std::int64_t batch_stride = 0;
};
struct BlasPreferenceObject {
  std::uint64_t workspace_limit = 0;
  std::uint32_t alignment = 256;
};

namespace {

constexpr Code kInvalid = 7, kNotSupported = 15;  // cublasStatus_t
constexpr std::size_t kWorkspace = 1024, kWorkspaceAlignment = 256;

std::size_t bytes_of(int type) { return type == kBlasFloat32 ? 4 : 2; }

double load(const std::byte* at, int type) {
  if (type == kBlasFloat32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return static_cast<double>(value);
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  if (type == kBlasFloat16) return emulated_from_half(bits);
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return static_cast<double>(value);
}

void store(std::byte* at, int type, double value) {
  const auto single = static_cast<float>(value);
  if (type == kBlasFloat32) {
    std::memcpy(at, &single, sizeof single);
  } else if (type == kBlasFloat16) {
    const std::uint16_t half = emulated_to_half(static_cast<double>(single));
    std::memcpy(at, &half, sizeof half);
  } else {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &single, sizeof bits);
    const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
    const auto upper = static_cast<std::uint16_t>(single != single ? 0x7fc0U : rounded >> 16);
    std::memcpy(at, &upper, sizeof upper);
  }
}

struct Product {
  BlasDescriptionObject description;
  BlasLayoutObject a, b, d;
  const void *left, *right;
  void *result, *workspace;
  std::size_t workspace_bytes;

  static std::int64_t place(const BlasLayoutObject& m, std::int64_t row, std::int64_t column) {
    return (column * m.pitch + row) * static_cast<std::int64_t>(bytes_of(m.type));
  }
  // One matrix of a batch as numbers, `columns` after each other; `transposed`: its rows.
  static void unpack(const BlasLayoutObject& m, const std::byte* base, bool transposed,
                     std::vector<double>& out) {
    const auto rows = static_cast<std::int64_t>(transposed ? m.columns : m.rows);
    const auto columns = static_cast<std::int64_t>(transposed ? m.rows : m.columns);
    out.resize(static_cast<std::size_t>(rows * columns));
    double* to = out.data();
    for (std::int64_t c = 0; c < columns; ++c)
      for (std::int64_t r = 0; r < rows; ++r)
        *to++ = load(base + (transposed ? place(m, c, r) : place(m, r, c)), m.type);
  }
  __attribute__((optimize("O3"))) static void add_product(double* __restrict sums,
                                                          const double* __restrict left,
                                                          double right, std::uint64_t count) {
    for (std::uint64_t r = 0; r < count; ++r) sums[r] += left[r] * right;
  }
  static std::int64_t batch_bytes(const BlasLayoutObject& m) {
    return m.batch_stride * static_cast<std::int64_t>(bytes_of(m.type));
  }
  void run() const {
    std::memset(real_address(workspace), 0x5a, workspace_bytes);
    const std::byte *x = real_address(left), *y = real_address(right);
    std::byte* const out = real_address(result);
    const std::uint64_t depth = description.transpose_left ? a.rows : a.columns;
    thread_local std::vector<double> lefts, rights, sums;  // fresh memory costs more than a product
    sums.resize(d.rows);
    for (std::int64_t i = 0; i < d.batch; ++i) {
      unpack(a, x + i * batch_bytes(a), description.transpose_left, lefts);
      unpack(b, y + i * batch_bytes(b), description.transpose_right, rights);
      for (std::uint64_t c = 0; c < d.columns; ++c) {
        std::fill(sums.begin(), sums.end(), 0.0);
        for (std::uint64_t k = 0; k < depth; ++k)
          add_product(sums.data(), lefts.data() + k * d.rows, rights[c * depth + k], d.rows);
        for (std::uint64_t r = 0; r < d.rows; ++r) {
          if (description.has_bias)
            sums[r] += load(real_address(description.bias) + r * bytes_of(d.type), d.type);
          store(out + i * batch_bytes(d) +
                    place(d, static_cast<std::int64_t>(r), static_cast<std::int64_t>(c)),
                d.type, sums[r]);
        }
      }
    }
  }
};

}  // namespace

extern "C" {

#pragma GCC visibility push(default)

std::size_t cublasLtGetVersion() { return 130000; }
Code cublasLtCreate(BlasHandle* out) {
  *out = new BlasObject;
  return planned_failure(__func__);
}
Code cublasLtDestroy(BlasHandle handle) {
  delete handle;
  return kSuccess;
}
Code cublasLtMatmulDescCreate(BlasDescription* out, int, int) {
  *out = new BlasDescriptionObject;
  return planned_failure(__func__);
}
Code cublasLtMatmulDescSetAttribute(BlasDescription description, int which, const void* value,
                                    std::size_t) {
  int set = 0;
  std::memcpy(&set, value, sizeof set);
  switch (which) {
    case kBlasTransposeLeft:
      description->transpose_left = set == kBlasTransposed;
      break;
    case kBlasTransposeRight:
      description->transpose_right = set == kBlasTransposed;
      break;
    case kBlasEpilogue:
      description->has_bias = set == kBlasEpilogueBias;
      break;
    case kBlasBiasType:
      description->bias_type = set;
      break;
    case kBlasBias:
      std::memcpy(&description->bias, value, sizeof description->bias);
      break;
    default:
      return kInvalid;
  }
  return planned_failure(__func__);
}
Code cublasLtMatmulDescDestroy(BlasDescription description) {
  delete description;
  return kSuccess;
}
Code cublasLtMatrixLayoutCreate(BlasLayout* out, int type, unsigned long long rows,
                                unsigned long long columns, long long pitch) {
  *out = new BlasLayoutObject{type, rows, columns, pitch};
  return planned_failure(__func__);
}
Code cublasLtMatrixLayoutSetAttribute(BlasLayout layout, int which, const void* value,
                                      std::size_t) {
  if (which == kBlasBatchCount)
    std::memcpy(&layout->batch, value, sizeof layout->batch);
  else
    std::memcpy(&layout->batch_stride, value, sizeof layout->batch_stride);
  return planned_failure(__func__);
}
Code cublasLtMatrixLayoutDestroy(BlasLayout layout) {
  delete layout;
  return kSuccess;
}
Code cublasLtMatmulPreferenceCreate(BlasPreference* out) {
  *out = new BlasPreferenceObject;
  return planned_failure(__func__);
}
Code cublasLtMatmulPreferenceSetAttribute(BlasPreference preference, int which, const void* value,
                                          std::size_t) {
  if (which == kBlasWorkspaceLimit)
    std::memcpy(&preference->workspace_limit, value, sizeof preference->workspace_limit);
  else
    std::memcpy(&preference->alignment, value, sizeof preference->alignment);
  return planned_failure(__func__);
}
Code cublasLtMatmulPreferenceDestroy(BlasPreference preference) {
  delete preference;
  return kSuccess;
}
Code cublasLtMatmulAlgoGetHeuristic(BlasHandle, BlasDescription description, BlasLayout a,
                                    BlasLayout b, BlasLayout, BlasLayout d,
                                    BlasPreference preference, int, BlasChoice* out, int* found) {
  *found = 0;
  for (const BlasLayoutObject* m : {a, b, d})
    if (m->pitch < static_cast<std::int64_t>(m->rows)) return kInvalid;
  const std::uint64_t rows = description->transpose_left ? a->columns : a->rows,
                      depth = description->transpose_left ? a->rows : a->columns,
                      other = description->transpose_right ? b->columns : b->rows,
                      columns = description->transpose_right ? b->rows : b->columns;
  if (rows != d->rows || columns != d->columns || depth != other) return kInvalid;
  if (a->type != b->type || preference->workspace_limit < kWorkspace) return kNotSupported;
  *out = {};
  out->algorithm.data[0] = preference->alignment;
  out->workspace_bytes = kWorkspace;
  *found = 1;
  return planned_failure(__func__);
}
Code cublasLtMatmul(BlasHandle, BlasDescription description, const void* alpha, const void* a,
                    BlasLayout a_layout, const void* b, BlasLayout b_layout, const void* beta,
                    const void*, BlasLayout, void* d, BlasLayout d_layout,
                    const BlasAlgorithm* algorithm, void* workspace, std::size_t workspace_bytes,
                    StreamHandle stream) {
  if (const Code code = planned_failure(__func__); code != kSuccess) return code;
  float one = 0, zero = 1;
  std::memcpy(&one, alpha, sizeof one);
  std::memcpy(&zero, beta, sizeof zero);
  if (one != 1 || zero != 0) return kNotSupported;
  if (description->has_bias &&
      (description->bias == nullptr || description->bias_type != d_layout->type))
    return kInvalid;
  for (const void* address : {a, b, static_cast<const void*>(d)})
    if (reinterpret_cast<std::uintptr_t>(address) % algorithm->data[0] != 0) return kInvalid;
  if (reinterpret_cast<std::uintptr_t>(workspace) % kWorkspaceAlignment != 0) return kInvalid;
  enqueue(stream, [product = Product{*description, *a_layout, *b_layout, *d_layout, a, b, d,
                                     workspace, workspace_bytes}] { product.run(); });
  return kSuccess;
}

#pragma GCC visibility pop

}  // extern "C"

}  // namespace backplane::cuda
