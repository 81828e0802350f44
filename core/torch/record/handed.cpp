#include "core/torch/record/handed.h"

#include <ATen/FunctionalTensorWrapper.h>

#include <utility>

namespace backplane::record {

namespace functional = at::functionalization::impl;

std::string argument_text(std::size_t index) { return "argument " + std::to_string(index); }

Status unsupported(std::string what) { return Status(Code::kUnsupported, std::move(what)); }

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return functional::isFunctionalTensor(tensor) ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

ValueNumber value_of(Session& session, const at::Tensor& tensor, std::string_view reader) {
  if (!functional::isFunctionalTensor(tensor)) return session.number_of(tensor, reader);
  functional::sync(tensor);
  return session.number_of(functional::from_functional_tensor(tensor), reader);
}

}  // namespace backplane::record
