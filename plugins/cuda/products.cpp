#include "products.h"

#include <algorithm>

namespace backplane::cuda {
namespace {

constexpr std::uint64_t kWorkspaceLimit = std::uint64_t{32} << 20;
constexpr std::uint32_t kAligned = 16;
constexpr std::uint64_t kWorkspaceAlignment = 256;  // the library takes no other

int type_of(kernelgen::Storage storage) {
  return storage == kernelgen::Storage::kF16    ? kBlasFloat16
         : storage == kernelgen::Storage::kBF16 ? kBlasBfloat16
                                                : kBlasFloat32;
}
std::uint32_t bytes_of(kernelgen::Storage storage) {
  return static_cast<std::uint32_t>(kernelgen::storage_bytes(storage));
}

}  // namespace

std::shared_ptr<const BlasLibrary> BlasLibrary::find() {
  const Blas* calls = find_blas();
  BlasHandle handle = nullptr;
  if (calls == nullptr || calls->cublasLtCreate(&handle) != kSuccess) return nullptr;
  return std::make_shared<const BlasLibrary>(*calls, handle);
}

BlasProduct::~BlasProduct() {
  const Blas& blas = library_->calls();
  if (description_ != nullptr) blas.cublasLtMatmulDescDestroy(description_);
  for (BlasLayout layout : {first_, second_, result_})
    if (layout != nullptr) blas.cublasLtMatrixLayoutDestroy(layout);
}

bool BlasProduct::describe(const kernels::ProductShape& shape) {
  const Blas& blas = library_->calls();
  if (blas.cublasLtMatmulDescCreate(&description_, kBlasComputeFloat32, kBlasFloat32) != kSuccess)
    return false;
  if (shape.has_bias) {
    const int epilogue = kBlasEpilogueBias, type = type_of(shape.result.storage);
    for (const auto& [which, value] : {std::pair(kBlasEpilogue, epilogue), {kBlasBiasType, type}})
      if (blas.cublasLtMatmulDescSetAttribute(description_, which, &value, sizeof value) !=
          kSuccess)
        return false;
    has_bias_ = true;
  }
  // Rows of ours are columns of the library's: a matrix whose rows are dense lies there as it is.
  const auto add = [&](BlasLayout& layout, const kernels::ProductMatrix& m, std::int64_t rows,
                       std::int64_t columns, int transpose) {
    const bool dense_rows = m.column_stride == 1;
    const std::int64_t pitch = dense_rows ? m.row_stride : m.column_stride;
    const auto inner = static_cast<std::uint64_t>(dense_rows ? columns : rows),
               outer = static_cast<std::uint64_t>(dense_rows ? rows : columns);
    if (blas.cublasLtMatrixLayoutCreate(&layout, type_of(m.storage), inner, outer, pitch) !=
        kSuccess)
      return false;
    if (const int transposed = kBlasTransposed; transpose != 0 && !dense_rows)
      if (blas.cublasLtMatmulDescSetAttribute(description_, transpose, &transposed,
                                              sizeof transposed) != kSuccess)
        return false;
    if (shape.batch == 1) return true;
    const auto count = static_cast<std::int32_t>(shape.batch);
    return blas.cublasLtMatrixLayoutSetAttribute(layout, kBlasBatchCount, &count, sizeof count) ==
               kSuccess &&
           blas.cublasLtMatrixLayoutSetAttribute(layout, kBlasBatchStride, &m.batch_stride,
                                                 sizeof m.batch_stride) == kSuccess;
  };
  return add(first_, shape.right, shape.depth, shape.columns, kBlasTransposeLeft) &&
         add(second_, shape.left, shape.rows, shape.depth, kBlasTransposeRight) &&
         add(result_, shape.result, shape.rows, shape.columns, 0);
}

std::optional<BlasChoice> BlasProduct::choose(std::uint32_t alignment) const {
  const Blas& blas = library_->calls();
  BlasPreference preference = nullptr;
  if (blas.cublasLtMatmulPreferenceCreate(&preference) != kSuccess) return std::nullopt;
  const std::unique_ptr<BlasPreference, void (*)(BlasPreference*)> owner(
      &preference, [](BlasPreference* p) { find_blas()->cublasLtMatmulPreferenceDestroy(*p); });
  Code code = blas.cublasLtMatmulPreferenceSetAttribute(preference, kBlasWorkspaceLimit,
                                                        &kWorkspaceLimit, sizeof kWorkspaceLimit);
  for (int operand = 0; operand < 4 && code == kSuccess; ++operand)
    code = blas.cublasLtMatmulPreferenceSetAttribute(preference, kBlasAlignment + operand,
                                                     &alignment, sizeof alignment);
  // Of a bias the library looks at the address itself.
  const auto bias = static_cast<Address>(alignment);
  if (code == kSuccess && has_bias_)
    code = blas.cublasLtMatmulDescSetAttribute(description_, kBlasBias, &bias, sizeof bias);
  BlasChoice choice{};
  int found = 0;
  if (code != kSuccess ||
      blas.cublasLtMatmulAlgoGetHeuristic(library_->handle(), description_, first_, second_,
                                          result_, result_, preference, 1, &choice,
                                          &found) != kSuccess ||
      found == 0 || choice.status != kSuccess)
    return std::nullopt;
  return choice;
}

std::shared_ptr<const BlasProduct> BlasProduct::make(std::shared_ptr<const BlasLibrary> library,
                                                     const kernels::ProductShape& shape) {
  std::shared_ptr<BlasProduct> made(new BlasProduct(std::move(library)));
  if (!made->describe(shape)) return nullptr;
  made->aligned_ = made->choose(kAligned);
  made->unaligned_ =
      made->choose(std::min(bytes_of(shape.left.storage), bytes_of(shape.result.storage)));
  if (!made->unaligned_) return nullptr;
  if (!made->aligned_) made->aligned_ = made->unaligned_;
  return made;
}

std::uint64_t BlasProduct::workspace_bytes() const {
  const std::uint64_t most = std::max(aligned_->workspace_bytes, unaligned_->workspace_bytes);
  return most == 0 ? 0 : most + kWorkspaceAlignment;
}

Code BlasProduct::run(const std::byte* left, const std::byte* right, const std::byte* bias,
                      std::byte* result, std::byte* workspace, StreamHandle stream) const {
  const Address all = address_of(left) | address_of(right) | address_of(result) | address_of(bias);
  const BlasChoice& choice = all % kAligned == 0 ? *aligned_ : *unaligned_;
  const float one = 1, zero = 0;
  void* const space =
      choice.workspace_bytes == 0
          ? nullptr
          : reinterpret_cast<void*>((address_of(workspace) + kWorkspaceAlignment - 1) /
                                    kWorkspaceAlignment * kWorkspaceAlignment);
  const Blas& blas = library_->calls();
  std::unique_lock<std::mutex> lock;
  if (has_bias_) {
    lock = std::unique_lock(bias_mutex_);
    if (const Code code =
            blas.cublasLtMatmulDescSetAttribute(description_, kBlasBias, &bias, sizeof bias);
        code != kSuccess)
      return code;
  }
  return blas.cublasLtMatmul(library_->handle(), description_, &one, right, first_, left, second_,
                             &zero, result, result_, result, result_, &choice.algorithm, space,
                             choice.workspace_bytes, stream);
}

}  // namespace backplane::cuda
