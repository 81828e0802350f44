// A warm call of a plan allocates nothing: counts what this thread asks of operator new, less what
// a plugin's library asks for.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "core/runtime/plan/compiled_graph.h"
#include "core/runtime/testing/run_graph.h"

namespace {

thread_local bool t_counts = false;
thread_local std::size_t t_allocations = 0, t_of_plugins = 0;

void count(const void* caller) {
  Dl_info info{};
  const bool is_plugin =
      dladdr(caller, &info) != 0 && info.dli_fname != nullptr &&
      std::string_view(info.dli_fname).find("libbackplane_") != std::string::npos;
  ++(is_plugin ? t_of_plugins : t_allocations);
}

void* allocate(std::size_t bytes, std::size_t alignment, const void* caller) {
  if (t_counts) count(caller);
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded != 0 ? rounded : alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace backplane::runtime {
namespace {

using testing_graph::compile;
using testing_graph::Floats;
using testing_graph::reference_device;

TEST(Allocations, AWarmCallMakesNone) {
  Device* const device = reference_device();
  ASSERT_NE(device, nullptr);
  // Two partitions and a value between them that lies in the arena.
  const auto compiled = compile(R"(
graph @warm(%x: f32[64], %w: f32[64] static) -> (f32[64]) {
  %0 = aten.mul.Tensor(%x, %w) : f32[64]
  %1 = aten.relu(%0) : f32[64]
  %2 = aten.add.Tensor(%1, %w) : f32[64]
  return %2
})",
                                {device});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  CompiledGraph& graph = **compiled;
  const auto plan = graph.plan({});
  ASSERT_TRUE(plan.ok());
  Floats x(64, 2), w(64, 3), out(64);
  const std::vector<std::int64_t> dims{64}, strides{1};
  const std::vector<void*> inputs{x.data(), w.data()}, outputs{out.data()};
  std::vector<StaticTensor> tensors(graph.packed_inputs().size());
  const auto call = [&] {
    for (StaticTensor& tensor : tensors) {
      tensor = {};
      tensor.data = tensor.storage = w.data();
    }
    const auto packs = graph.packs(tensors);
    if (!packs.ok()) return packs.status().code();
    CompiledGraph::Call arguments;
    arguments.inputs = inputs;
    arguments.outputs = outputs;
    arguments.packs = packs->get();
    return graph.run(**plan, arguments).code();
  };
  for (int i = 0; i < 3; ++i) ASSERT_EQ(call(), Code::kOk);
  t_counts = true;
  const Code code = call();
  const std::vector<int> one(1);
  t_counts = false;
  EXPECT_EQ(t_allocations, 1u);  // the vector: it is counted at all
  EXPECT_GT(t_of_plugins, 0u);
  EXPECT_EQ(code, Code::kOk);
  EXPECT_EQ(out, Floats(64, 9));
}

}  // namespace
}  // namespace backplane::runtime
