// A compiled function at one set of sizes: its graph's plan, and the layouts of what goes in and
// out. All of a call that does not depend on its tensors. Immutable but for what is atomic.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"
#include "core/runtime/plan/compiled_graph.h"
#include "core/torch/device/devices.h"

namespace backplane::compiler {

struct Layout {
  std::vector<std::int64_t> dims, strides;
  at::ScalarType dtype = at::kFloat;

  // A dim of size one has no stride.
  bool has_strides(const at::Tensor& tensor) const;
};

Layout layout_of(const ir::TensorType& type, std::span<const std::int64_t> classes);

// On the host where `device` is null.
at::Tensor make_tensor(const Layout& layout, device::TorchDevice* device = nullptr);

// A value as a view of the memory of its root.
struct View {
  ir::ValueId root = 0;
  bool is_root = true;  // it is `root` itself: what follows is of views alone
  Layout layout;
  std::int64_t offset_bytes = 0;

  at::Tensor of(const at::Tensor& root_tensor) const;
};

View view_of(const ir::Graph& graph, ir::ValueId value, std::span<const std::int64_t> classes);

struct FunctionPlan {
  // `sizes`: of the dim classes that no expression gives. kInvalidArgument where the inputs' sizes
  // are none of the graph's.
  static Result<std::shared_ptr<const FunctionPlan>> make(
      const runtime::CompiledGraph& graph, std::span<const std::span<const std::int64_t>> inputs,
      std::span<const std::int64_t> sizes);

  std::vector<std::int64_t> sizes;
  std::unique_ptr<const runtime::Plan> graph;
  std::vector<Layout> inputs, exports;  // exports: of the roots
  std::vector<View> outputs;
  mutable std::atomic<bool> has_run{false};  // to the end, once
};

}  // namespace backplane::compiler
