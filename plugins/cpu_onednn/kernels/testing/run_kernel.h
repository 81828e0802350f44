// For tests of kernels: runs one node by this plugin's kernel for it, without a device.
#pragma once

#include <backplane/sdk/testing/one_node.hpp>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels/kernel_registry.h"

namespace backplane::onednn::testing {

using namespace sdk::testing;

using MakeKernel = MadeKernel (*)(const sdk::StepContext& context);

// Runs a node by the kernel that `make` makes, whatever the registry says.
inline auto made_by(MakeKernel make) {
  return [make](OneNode& node) {
    const bp_graph raw = node.graph();
    const sdk::GraphView graph(raw);
    const sdk::Step step{{0}, node.operands(), node.results()};
    const std::vector<sdk::TensorSpec> specs = node.specs();
    auto kernel = make(sdk::StepContext(graph, step, specs, sdk::Dims({})));
    if (!kernel.ok()) throw std::logic_error("no kernel was made");
    std::vector<std::byte> scratch((*kernel)->scratch_bytes() + 64, std::byte{0xff});
    auto* aligned = reinterpret_cast<std::byte*>(
        (reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) / 64 * 64);
    const std::vector<std::byte*> memory = node.addresses();
    const sdk::Status status =
        (*kernel)->run({memory.data(), memory.data() + node.operands().size(), aligned});
    if (!status.ok()) throw std::logic_error("the kernel failed");
  };
}

// Runs a node by the kernel that a claim of it leads to.
inline void kernel(OneNode& node) {
  const KernelRow* row = find_kernel(node.op());
  if (row == nullptr) throw std::logic_error("no kernel for " + node.op());
  if (row->refuse) {
    const bp_graph raw = node.graph();
    const auto refusal = row->refuse(sdk::GraphView(raw)[0]);
    if (refusal) throw std::logic_error(refusal->text);
  }
  made_by(row->make)(node);
}

}  // namespace backplane::onednn::testing
