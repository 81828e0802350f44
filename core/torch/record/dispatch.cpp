#include "core/torch/record/dispatch.h"

#include <ATen/EmptyTensor.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

#include <exception>
#include <memory>
#include <string>

#include "core/torch/record/decompositions.h"
#include "core/torch/record/fallback.h"
#include "core/torch/record/program_tape.h"

namespace backplane::record {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

const DispatchKeySet kRecordingKeys{kRecordKey, kDecomposeKey, DispatchKey::Functionalize};

DispatchKeySet keys_above_kernels() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | kRecordingKeys |
         DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot,
                         DispatchKey::FuncTorchDynamicLayerFrontMode,
                         DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::FuncTorchVmapMode,
                         DispatchKey::VmapMode});
}

Status do_register() {
  // At run time and not as a static initializer: a second fallback for a key throws, which from an
  // initializer would end the process.
  try {
    const BelowRecording below;  // what is tried meanwhile: the first call may be inside of a vmap
    static auto& fallbacks =
        *new torch::Library(torch::Library::IMPL, "_", kRecordKey, __FILE__, __LINE__);
    fallbacks.fallback(torch::CppFunction::makeFromBoxedFunction<&record_call>());
    static auto& through =
        *new torch::Library(torch::Library::IMPL, "_", kDecomposeKey, __FILE__, __LINE__);
    through.fallback(torch::CppFunction::makeFromBoxedFunction<&note_call>());
    static auto& decompositions =
        *new torch::Library(torch::Library::IMPL, "aten", kDecomposeKey, __FILE__, __LINE__);
    register_decompositions(decompositions);
  } catch (const std::exception& error) {
    return Status(
        Code::kUnsupported,
        std::string("The recorder cannot register with this build of torch: ") + error.what());
  }
  return {};
}

}  // namespace

Status register_recorder() {
  static const Status& status = *new Status(do_register());
  return status;
}

RecordingScope::RecordingScope()
    : include_(kRecordingKeys),
      reapply_views_(at::functionalization::impl::getFunctionalizationReapplyViewsTLS()) {
  at::functionalization::impl::setFunctionalizationReapplyViewsTLS(true);
}

RecordingScope::~RecordingScope() {
  at::functionalization::impl::setFunctionalizationReapplyViewsTLS(reapply_views_);
}

BelowRecording::BelowRecording() : exclude_(keys_above_kernels()) {}

at::Tensor meta_like(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  at::Tensor meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), dtype);
  if (const std::int64_t offset = tensor.storage_offset(); offset != 0) {
    const BelowRecording below;
    const auto count = static_cast<std::int64_t>(meta.storage().nbytes() / tensor.element_size());
    const at::Tensor base = at::detail::empty_strided_meta({offset + count}, {1}, dtype);
    meta = base.as_strided(tensor.sizes(), tensor.strides(), offset);
  }
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

}  // namespace backplane::record
