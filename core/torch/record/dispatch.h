// The switches in PyTorch's dispatcher that a recording sets, and the recorder's hold on it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "core/base/status.h"
#include "core/torch/record/value_tensor.h"

namespace backplane::record {

// Registers the recorder and the decompositions with the dispatcher, once per process. Fails where
// this release of torch, or another library in the process, uses the keys for itself.
Status register_recorder();

// While one lives, the calling thread's ATen calls are recorded: functionalized, then taken.
class RecordingScope {
 public:
  RecordingScope();
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
  bool reapply_views_;
};

// While one lives, the calling thread's ATen calls reach the device's kernels.
class BelowRecording {
 public:
  BelowRecording();

 private:
  c10::impl::ExcludeDispatchKeyGuard exclude_;
};

// A meta tensor with the shape, strides and offset of `tensor`.
at::Tensor meta_like(const at::Tensor& tensor);

}  // namespace backplane::record
