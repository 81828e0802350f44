#include "core/runtime/plugin/executable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "core/runtime/host/disk_cache.h"
#include "core/runtime/plugin/plugin.h"
#include "core/runtime/testing/files.h"
#include "core/runtime/testing/run_graph.h"

namespace backplane::runtime {
namespace {

using testing_graph::call;
using testing_graph::compile;
using testing_graph::evaluate;
using testing_graph::Inputs;
using testing_graph::reference_device;

// What an edit of the file does to the next compile.
enum class Edit { kNone, kShorten, kFlip, kEmpty };

void edit_blobs(Edit edit) {
  for (const auto& entry :
       std::filesystem::directory_iterator(DiskCache::instance()->directory())) {
    const std::string path = entry.path().string();
    std::string bytes = testing_files::read_file(path);
    if (edit == Edit::kShorten) bytes.resize(bytes.size() / 2);
    if (edit == Edit::kFlip) bytes[bytes.size() - 3] ^= 1;
    if (edit == Edit::kEmpty) bytes.clear();
    testing_files::write_file(path, bytes);
  }
}

bool comes_from_cache(std::string_view text, Device* device = reference_device()) {
  const auto compiled = compile(text, {device});
  EXPECT_TRUE(compiled.ok()) << compiled.status().message();
  if (!compiled.ok() || (*compiled)->partitions().size() != 1) return false;
  const ir::Graph& graph = (*compiled)->graph();
  const testing_graph::Classes classes = ir::hint_values(graph);
  Inputs inputs = Inputs::random(graph, classes);
  const auto expected = evaluate(graph, inputs, classes);
  const auto found = call(**compiled, inputs, classes);
  EXPECT_TRUE(found.ok()) << found.status().message();
  if (found.ok()) {
    EXPECT_EQ(*found, *expected);
  }
  return (*compiled)->partitions()[0]->from_cache;
}

// A graph that no other test compiles.
std::string text_of(std::string_view name, std::string_view value = "2.5") {
  return "graph @" + std::string(name) + "(%" + std::string(name) +
         ": f32[3]) -> (f32[3]) {\n  constant %c: f32[1] = [" + std::string(value) +
         "]\n  %0 = aten.add.Tensor(%" + std::string(name) + ", %c) : f32[3]\n  return %0\n}\n";
}

TEST(Executable, TheSecondCompileComesFromTheCache) {
  if (DiskCache::instance() == nullptr) GTEST_SKIP() << "caching is off";
  EXPECT_FALSE(comes_from_cache(text_of("cached")));
  EXPECT_TRUE(comes_from_cache(text_of("cached")));
  EXPECT_FALSE(comes_from_cache(text_of("cached", "3.5")));  // other content of a constant
}

TEST(Executable, TornBlobsAreCompiledAnew) {
  if (DiskCache::instance() == nullptr) GTEST_SKIP() << "caching is off";
  for (const Edit edit : {Edit::kShorten, Edit::kFlip, Edit::kEmpty}) {
    comes_from_cache(text_of("torn"));
    EXPECT_TRUE(comes_from_cache(text_of("torn")));
    edit_blobs(edit);
    EXPECT_FALSE(comes_from_cache(text_of("torn")));
    EXPECT_TRUE(comes_from_cache(text_of("torn")));
  }
}

TEST(Executable, BlobsOfAnotherKindAreCompiledAnew) {
  DiskCache* cache = DiskCache::instance();
  if (cache == nullptr) GTEST_SKIP() << "caching is off";
  // Intact files whose content the plugin cannot load: exchange the blobs of two graphs.
  EXPECT_FALSE(comes_from_cache(text_of("kind")));
  for (const auto& entry : std::filesystem::directory_iterator(cache->directory()))
    testing_files::write_file(entry.path().string(), "BPCACHE of another day");
  EXPECT_FALSE(comes_from_cache(text_of("kind")));
}

TEST(Executable, DimClassesAreInTheKey) {
  if (DiskCache::instance() == nullptr) GTEST_SKIP() << "caching is off";
  // The same partition; but s0 is another column of the call's dims.
  const std::string head = "graph @classes(%x: f32[s0], %y: f32[s1]) -> (f32[s0], f32[s1]) ";
  const std::string body = " {\n  %0 = aten.neg(%x) : f32[s0]\n  return %0, %y\n}\n";
  EXPECT_FALSE(comes_from_cache(head + "classes(s0: 3, s1: 7)" + body));
  EXPECT_TRUE(comes_from_cache(head + "classes(s0: 3, s1: 7)" + body));
  EXPECT_FALSE(comes_from_cache(head + "classes(s1: 7, s0: 3)" + body));
  EXPECT_FALSE(comes_from_cache(head + "classes(s0: 3 [1, 8], s1: 7)" + body));
}

TEST(Executable, TypesOfConstantsAreInTheKey) {
  if (DiskCache::instance() == nullptr) GTEST_SKIP() << "caching is off";
  const auto text = [](const char* type, const char* value) {
    return "graph @consts(%x: f32[2]) -> (f32[2]) {\n  constant %c: " + std::string(type) + " = [" +
           value + "]\n  %0 = aten.mul.Tensor(%x, %c) : f32[2]\n  return %0\n}\n";
  };
  const auto first = compile(text("f32[1]", "1.0"), {reference_device()});
  const auto second = compile(text("i32[1]", "1065353216"), {reference_device()});  // equal bytes
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_EQ((*second)->partitions().size(), 1u);
  EXPECT_FALSE((*second)->partitions()[0]->from_cache);
}

ExecutableRequest one_in_and_out() {
  static constexpr std::array<bp_io_request, 1> kStrided = [] {
    std::array<bp_io_request, 1> made{};
    made[0].layout.kind = BP_LAYOUT_STRIDED;
    return made;
  }();
  ExecutableRequest request;
  request.inputs = request.outputs = kStrided;
  return request;
}

TEST(Executable, AnswersTheContract) {
  const auto graph = ir::parse(R"(
graph @contract(%x: f32[8]) -> (f32[8]) {
  %0 = aten.neg(%x) : f32[8]
  %1 = aten.relu(%0) : f32[8]
  return %1
})");
  ASSERT_TRUE(graph.ok());
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  const GraphArrays arrays(*graph);
  ExecutableRequest request = one_in_and_out();
  request.graph_text = "contract";
  const auto made = Executable::compile(*device, arrays, request);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ((*made)->input(0).layout.kind, static_cast<bp_layout_kind>(BP_LAYOUT_STRIDED));
  const auto workspace = (*made)->workspace_bytes({});
  ASSERT_TRUE(workspace.ok());
  EXPECT_GE(*workspace, 32u);  // %0
}

TEST(Executable, OneThatIsInUseIsRefused) {
  ::setenv("BACKPLANE_SABOTAGE", "compile again", 1);
  auto plugin = Plugin::load(testing_files::testing_plugin("sabotage"));
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  const auto device = (*plugin)->device(0);
  ASSERT_TRUE(device.ok()) << device.status().message();
  const auto graph = ir::parse(text_of("again"));
  ASSERT_TRUE(graph.ok());
  const GraphArrays arrays(*graph);
  const ExecutableRequest request = one_in_and_out();
  {
    const auto first = Executable::compile(**device, arrays, request);
    ASSERT_TRUE(first.ok()) << first.status().message();
    const auto second = Executable::compile(**device, arrays, request);
    ASSERT_FALSE(second.ok());
    EXPECT_THAT(second.status().message(),
                ::testing::AllOf(::testing::HasSubstr("(sabotage:0): compile (aten.add.Tensor)"),
                                 ::testing::HasSubstr("in use")));
  }
  EXPECT_TRUE(Executable::compile(**device, arrays, request).ok());
  ::unsetenv("BACKPLANE_SABOTAGE");
}

TEST(Executable, ACompileFailureNamesPluginDeviceAndCall) {
  const auto graph = ir::parse(R"(
graph @unclaimed(%x: f32[8]) -> (f32[8]) {
  %0 = test.twice(%x) : f32[8]
  return %0
})");
  ASSERT_TRUE(graph.ok());
  Device* device = reference_device(1);
  ASSERT_NE(device, nullptr);
  const GraphArrays arrays(*graph);
  std::vector<bp_io_request> inputs(1), outputs(1);
  ExecutableRequest request;
  request.inputs = inputs;
  request.outputs = outputs;
  const auto made = Executable::compile(*device, arrays, request);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(
      made.status().message(),
      ::testing::AllOf(::testing::HasSubstr("'reference'"), ::testing::HasSubstr("reference:1"),
                       ::testing::HasSubstr("compile"), ::testing::HasSubstr("test.twice")));
}

}  // namespace
}  // namespace backplane::runtime
