// The CPU as a device: oneDNN for products and convolutions, own vector kernels for the rest.
#include <backplane/sdk.hpp>

#include <dlfcn.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "claims.h"
#include "grouping.h"
#include "kernels/kernel_registry.h"
#include "kernels/movement/strided_copy.h"
#include "kernels/primitives/convolution.h"
#include "kernels/primitives/matmul.h"
#include "kernels/rows/program_kernel.h"
#include "kernels/simd/instruction_set.h"
#include "kernels/simd/vector_table.h"
#include "layout_pass.h"
#include "packing.h"

namespace backplane::onednn {
namespace {

using sdk::CompileOptions;
using sdk::Result;
using sdk::Status;

std::string file_of(const void* symbol) {
  Dl_info found{};
  return dladdr(symbol, &found) != 0 && found.dli_fname ? found.dli_fname : "";
}

// The plugin's calls must reach the oneDNN it was built with. Another one in the process, loaded
// globally, would be bound silently and crash later.
void check_own_onednn() {
  namespace fs = std::filesystem;
  const fs::path bound = file_of(reinterpret_cast<const void*>(&dnnl_version));
  const fs::path own = file_of(reinterpret_cast<const void*>(&check_own_onednn));
  if (bound != own &&
      (bound.filename() != "libdnnl_backplane.so.3" || bound.parent_path() != own.parent_path()))
    throw std::runtime_error("oneDNN is bound to " + bound.string() +
                             " instead of the copy beside the plugin; another package loaded its "
                             "oneDNN for all libraries");
  const dnnl_version_t* have = dnnl_version();
  if (have->major != DNNL_VERSION_MAJOR || have->minor != DNNL_VERSION_MINOR)
    throw std::runtime_error("built for oneDNN " + std::to_string(DNNL_VERSION_MAJOR) + "." +
                             std::to_string(DNNL_VERSION_MINOR) + ", but " + bound.string() +
                             " is " + std::to_string(have->major) + "." +
                             std::to_string(have->minor));
}

// Runs on the caller's OpenMP team with as many threads as the host asks for.
class CpuExecutable : public sdk::ProgramExecutable {
 public:
  using ProgramExecutable::ProgramExecutable;
  Status execute(const sdk::Execution& call) override {
    set_threads();
    return ProgramExecutable::execute(call);
  }
  Result<std::uint64_t> workspace_bytes(std::span<const std::int64_t> dims) override {
    set_threads();
    return ProgramExecutable::workspace_bytes(dims);
  }
  // For the sizes that the graph was seen with, which most often come first: a node without a
  // kernel is told while it can still go elsewhere.
  Status make_kernels() {
    set_threads();
    std::vector<std::int64_t> dims;
    for (std::size_t c = 0; c < graph().dim_class_count(); ++c)
      dims.push_back(bp_graph_dim_class(&graph().raw(), c)->hint);
    return instance(dims).status();
  }
  // Scratch memory and primitives are made for one number of threads.
  std::int64_t variant() const override { return omp_get_max_threads(); }

 private:
  static void set_threads() {
    const auto wanted = static_cast<int>(sdk::thread_count());
    if (wanted > 0 && omp_get_max_threads() != wanted) omp_set_num_threads(wanted);
  }
};

Result<std::unique_ptr<sdk::Kernel>> make_group_kernel(const Group& group,
                                                       const sdk::StepContext& context) {
  switch (group.kind) {
    case Group::kProgram:
      return make_program_kernel(context);
    case Group::kMatmul:
      return make_matmul_kernel(context, group.packed);
    case Group::kConvolution:
      return make_convolution_kernel(context, group.packed);
    default:
      break;
  }
  const KernelRow* row = find_kernel(context.node().op());
  if (row == nullptr)
    return Status(BP_UNSUPPORTED, "no kernel for " + std::string(context.node().op()));
  return row->make(context);
}

class CpuDevice : public sdk::Device {
 public:
  // Throws where the wrong oneDNN is bound, or the instruction set asked for cannot be had: the
  // plugin then refuses to load.
  static std::vector<std::unique_ptr<CpuDevice>> enumerate() {
    check_own_onednn();
    static_cast<void>(instruction_set());
    std::vector<std::unique_ptr<CpuDevice>> one;
    one.push_back(std::make_unique<CpuDevice>());
    return one;
  }

  sdk::DeviceInfo info() const override {
    sdk::DeviceInfo info;
    info.name = "CPU (oneDNN)";
    info.kind = BP_DEVICE_CPU;
    info.flags = BP_DEVICE_BINDS_HOST_MEMORY;
    info.architecture = vector_table().name;
    info.driver = "oneDNN " + std::to_string(DNNL_VERSION_MAJOR) + "." +
                  std::to_string(DNNL_VERSION_MINOR) + "." + std::to_string(DNNL_VERSION_PATCH);
    const auto pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    info.memory_bytes = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page);
    info.buffer_limit_bytes = info.memory_bytes;
    const auto cores = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
    info.memory_bytes_per_s = 40e9;
    info.to_device_bytes_per_s = info.from_device_bytes_per_s = 20e9;
    info.launch_latency_ns = 1000;
    const double lanes = info.architecture == "avx512" ? 64 : info.architecture == "avx2" ? 32 : 8;
    info.rates = {{sdk::kFloat32, cores * lanes * 3e9}, {sdk::kBFloat16, cores * lanes * 6e9}};
    return info;
  }

  Result<sdk::Buffer> allocate(std::size_t bytes) override {
    // Whole pages for large blocks, so that the kernel can use huge ones.
    const std::size_t alignment = bytes >= (1U << 21) ? 4096 : 64;
    void* data = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
    if (data == nullptr) return Status(BP_OUT_OF_MEMORY, "out of host memory");
    return sdk::Buffer(data, bytes, [](void* p) { std::free(p); });
  }

  Status copy(const sdk::Copy& copy, const sdk::Order&) override {
    if (copy.bytes() != 0)
      std::memmove(copy.target.data(), copy.source.data(), static_cast<std::size_t>(copy.bytes()));
    return {};
  }

  sdk::Claims claims(const sdk::GraphView& graph) override { return claim_nodes(graph); }

  Result<std::unique_ptr<sdk::Executable>> compile(const sdk::Subgraph& graph,
                                                   const CompileOptions& options) override {
    auto channels_last = channels_last_values(graph);
    Grouping made = group_nodes(graph, channels_last,
                                [&](std::size_t i) { return options.wants_any_input(i); });
    auto groups = std::make_shared<std::vector<Group>>(std::move(made.groups));
    auto owner = std::make_shared<std::vector<std::size_t>>(graph.size(), SIZE_MAX);
    for (std::size_t g = 0; g < groups->size(); ++g)
      for (const std::uint32_t n : (*groups)[g].nodes) (*owner)[n] = g;
    auto factory =
        [groups, owner](const sdk::StepContext& context) -> Result<std::unique_ptr<sdk::Kernel>> {
      if (context.step().is_copy()) return make_copy_kernel(context.operand(0), context.result());
      try {
        return make_group_kernel((*groups)[(*owner)[context.step().nodes[0]]], context);
      } catch (const dnnl::error& error) {
        // Of a form that PyTorch computes, and no primitive does.
        if (error.status != dnnl_unimplemented && error.status != dnnl_invalid_arguments) throw;
        return Status(BP_UNSUPPORTED, error.what());
      }
    };
    sdk::Relayout relayout;
    if (std::find(channels_last.begin(), channels_last.end(), true) != channels_last.end())
      relayout = [channels_last](const sdk::GraphView& of, std::vector<sdk::TensorSpec>& specs) {
        apply_channels_last(of, channels_last, specs);
      };
    auto executable = std::make_unique<CpuExecutable>(graph, std::move(made.steps), factory,
                                                      std::move(made.layouts), std::move(relayout));
    executable->flags = BP_EXECUTABLE_SYNCHRONOUS | BP_EXECUTABLE_LENDING;
    executable->bring_workspace();
    if (options.role() != BP_ROLE_SINGLE) executable->lend_intermediates();
    BP_SDK_RETURN_IF_ERROR(executable->make_kernels());
    return std::unique_ptr<sdk::Executable>(std::move(executable));
  }

  Result<std::uint64_t> layout_bytes(const sdk::TensorDesc& desc) override {
    const auto layout = parse_layout_id(desc.layout.layout_id);
    const auto type = type_of(desc.dtype);
    if (!layout || !type) return Status(BP_DATA_CORRUPT, "an unknown layout");
    return std::uint64_t{packed_desc(*layout, *type, desc.dims).get_size()};
  }

  Status layout_convert(const sdk::LayoutConversion& c, const sdk::Order&) override {
    const auto layout = parse_layout_id(c.packed().layout.layout_id);
    const auto type = type_of(c.source_desc.dtype);
    if (!layout || !type) return Status(BP_DATA_CORRUPT, "an unknown layout");
    const auto desc_of = [&](const sdk::TensorDesc& d) {
      if (d.layout.kind != BP_LAYOUT_OPAQUE) return plain_desc(*layout, *type, d.dims, d.strides);
      const auto own = parse_layout_id(d.layout.layout_id);
      return packed_desc(own ? *own : *layout, *type, d.dims);
    };
    std::size_t scratch_bytes = 0;
    const Runnable reorder =
        make_reorder(desc_of(c.source_desc), desc_of(c.target_desc), &scratch_bytes);
    std::vector<std::byte> scratch(scratch_bytes + 64);
    void* const pointers[] = {c.source.data(), c.target.data(), scratch.data()};
    reorder.run(pointers);
    return {};
  }
};

}  // namespace
}  // namespace backplane::onednn

BP_PLUGIN("cpu_onednn", "Backplane", "0.1.0", backplane::onednn::CpuDevice)
