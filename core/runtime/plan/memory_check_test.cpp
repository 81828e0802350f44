#include "core/runtime/plan/memory_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/runtime/plan/guarded_range.h"
#include "core/runtime/testing/run_graph.h"

namespace backplane::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_graph::call;
using testing_graph::compile;
using testing_graph::evaluate;
using testing_graph::Inputs;
using testing_graph::Script;
using testing_graph::scripted_device;

class CheckMode {
 public:
  explicit CheckMode(const char* wanted = "memory") { ::setenv("BACKPLANE_CHECK", wanted, 1); }
  ~CheckMode() { ::unsetenv("BACKPLANE_CHECK"); }
  CheckMode(const CheckMode&) = delete;
  CheckMode& operator=(const CheckMode&) = delete;
};

constexpr const char* kText = R"(
graph @checked(%x: f32[5, 3], %y: f32[5, 3]) -> (f32[5, 3], f32[5, 3]) {
  %0 = aten.add.Tensor(%x, %y) : f32[5, 3]
  %1 = test.twice(%0) : f32[5, 3]
  %2 = aten.mul.Tensor(%1, %x) : f32[5, 3]
  %3 = aten.relu(%2) : f32[5, 3]
  return %2, %3
}
)";

// What a call of the graph says, with the plugin as scripted; empty where the result is right.
// `first` are the bits of the first inputs' first numbers.
std::string run(const char* device, const char* script, const char* text = kText,
                std::initializer_list<std::uint32_t> first = {}) {
  const Script words(script);
  auto compiled = compile(text, {scripted_device(device)});
  if (!compiled.ok()) return compiled.status().message();
  Inputs inputs = Inputs::random((*compiled)->graph());
  auto input = inputs.memory.begin();
  for (const std::uint32_t bits : first) (input++)->front() = std::bit_cast<float>(bits);
  const auto expected = evaluate((*compiled)->graph(), inputs);
  const auto found = call(**compiled, inputs);
  if (!found.ok()) return found.status().message();
  return *found == *expected ? "" : "a wrong result";
}

class OnEachDevice : public ::testing::TestWithParam<const char*> {};
// With streams and with memory of its own; the same, in host memory.
INSTANTIATE_TEST_SUITE_P(MemoryCheck, OnEachDevice,
                         ::testing::Values("scripted", "scripted_serial"));

TEST_P(OnEachDevice, NothingIsWrongWithARightPlugin) {
  const CheckMode on;
  EXPECT_EQ(run(GetParam(), ""), "");
  EXPECT_EQ(run(GetParam(), "lends"), "");
}

// The caller gets what the fallback made; the copy on the device ends with its last reader.
TEST_P(OnEachDevice, ACopyOfAnOutputMayEndEarly) {
  const CheckMode on;
  EXPECT_EQ(run(GetParam(), "", R"(
graph @copied(%x: f32[5, 3], %y: f32[5, 3]) -> (f32[5, 3], f32[5, 3]) {
  %0 = test.twice(%x) : f32[5, 3]
  %1 = aten.mul.Tensor(%0, %x) : f32[5, 3]
  %2 = test.twice(%1) : f32[5, 3]
  %3 = aten.add.Tensor(%2, %y) : f32[5, 3]
  %4 = test.twice(%3) : f32[5, 3]
  %5 = aten.relu(%4) : f32[5, 3]
  return %0, %5
}
)"),
            "");
}

TEST_P(OnEachDevice, AWritePastTheEnd) {
  const CheckMode on;
  EXPECT_THAT(
      run(GetParam(), "writes_past"),
      AllOf(HasSubstr("scripted"), HasSubstr("wrote past the end (at byte 60) of %0 of node 0"),
            HasSubstr("which has 60 bytes"), HasSubstr("0 aten.add.Tensor")));
}

TEST_P(OnEachDevice, AWriteBeforeTheBegin) {
  const CheckMode on;
  EXPECT_THAT(run(GetParam(), "writes_before"), HasSubstr("bytes before it) of %0 of node 0"));
}

TEST_P(OnEachDevice, AWrittenInput) {
  const CheckMode on;
  EXPECT_THAT(run(GetParam(), "writes_input"), HasSubstr("wrote to its input %x, at byte "));
}

TEST_P(OnEachDevice, AnElementThatIsNotWritten) {
  const CheckMode on;
  EXPECT_THAT(run(GetParam(), "leaves_last"),
              HasSubstr("did not write 1 of 15 elements of its output %0 of node 0 "
                        "(aten.add.Tensor) (the first is number 14)"));
}

TEST_P(OnEachDevice, AReadBeyondWhatWasBound) {
  const CheckMode on;
  EXPECT_THAT(run(GetParam(), "reads_past"), HasSubstr("read beyond what was bound"));
}

// One weight in 65536 has a filling in its low half.
TEST_P(OnEachDevice, HalvesOfNumbersHideNothing) {
  const CheckMode on;
  EXPECT_THAT(run(GetParam(), "leaves_last", kText, {0x40007ff9, 0x3f807ffb}),
              HasSubstr("did not write 1 of 15 elements"));
  EXPECT_THAT(run(GetParam(), "reads_past", kText, {0x40007ff9, 0x3f807ffb}),
              HasSubstr("read beyond what was bound"));
}

// As an input that another part of the program left unwritten.
TEST_P(OnEachDevice, AWholeNumberOfAnInputMayBeShown) {
  const CheckMode on;
  EXPECT_EQ(run(GetParam(), "", kText, {0x7ff97ff9}), "a wrong result");  // NaN equals nothing
}

TEST_P(OnEachDevice, AnUnwrittenWorkspace) {
  const CheckMode on;
  const char* const text = R"(
graph @workspace(%x: f32[5, 3]) -> (f32[5, 3]) {
  %0 = aten.neg(%x) : f32[5, 3]
  %1 = aten.add.Tensor(%0, %x) : f32[5, 3]
  return %1
}
)";
  EXPECT_EQ(run(GetParam(), "", text), "");
  // Neg's result stays in the workspace; its last element is never written.
  EXPECT_THAT(run(GetParam(), "leaves_last_neg", text),
              HasSubstr("read a workspace that it had not written"));
}

TEST(MemoryCheck, AReadAfterTheLastOne) {
  const CheckMode on;
  EXPECT_EQ(run("scripted_serial", "lends host_memory"), "");
  const Script words("host_memory");  // read when the device is opened: it may have been before
  Device* device = scripted_device("scripted_serial");
  ASSERT_NE(device, nullptr);
  if (!device->binds_host_memory()) GTEST_SKIP() << "the device was opened with memory of its own";
  EXPECT_THAT(run("scripted_serial", "lends gives_back_early"),
              HasSubstr("read memory that it had given back"));
}

TEST(MemoryCheck, WithoutTheVariableNothingIsSaid) {
  EXPECT_EQ(run("scripted", "writes_past_nothing"), "");
}

TEST(MemoryCheck, AnUnknownWord) {
  const CheckMode on("memroy");
  const auto compiled = compile(kText, {scripted_device()});
  ASSERT_FALSE(compiled.ok());
  EXPECT_THAT(compiled.status().message(), HasSubstr("BACKPLANE_CHECK is 'memroy'"));
}

// A fallback whose result lies in its operand's memory, which the plan gives to others.
class AliasingRunner final : public FallbackRunner {
 public:
  explicit AliasingRunner(const ir::Graph& graph) : graph_(graph) {}
  Status run(ir::NodeId node, Memory& memory) override {
    const ir::Node& n = graph_.nodes[node];
    memory.set_address(n.results[0], memory.address(ir::view_root(graph_, n.operands[0])));
    return {};
  }

 private:
  const ir::Graph& graph_;
};

TEST(MemoryCheck, AResultInTheMemoryOfAnOperand) {
  const CheckMode on;
  const char* const text = R"(
graph @aliases(%x: f32[5, 3], %y: f32[5, 3]) -> (f32[5, 3]) {
  %0 = aten.add.Tensor(%x, %y) : f32[5, 3]
  %1 = test.twice(%0) : f32[5, 3]
  %2 = aten.mul.Tensor(%1, %x) : f32[5, 3]
  return %2
}
)";
  auto compiled = compile(text, {scripted_device()});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  const auto plan = (*compiled)->plan({});
  ASSERT_TRUE(plan.ok());
  std::vector<float> x(15, 1), y(15, 2), out(15);
  void* const inputs[] = {x.data(), y.data()};
  void* const outputs[] = {out.data()};
  AliasingRunner runner((*compiled)->graph());
  CompiledGraph::Call arguments;
  arguments.inputs = inputs;
  arguments.outputs = outputs;
  arguments.fallback = &runner;
  const Status status = (*compiled)->run(**plan, arguments);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("%1 of node 1 (test.twice), written in step"),
                    HasSubstr("node 1 test.twice on aten, had changed before it was read by step"),
                    HasSubstr("It lies in the memory of %0 of node 0 (aten.add.Tensor), which "
                              "nobody needs after step")));
}

TEST(GuardedRange, FillingsAreNaN) {
  for (const Filling filling : kFillings) {
    alignas(8) std::byte memory[8];
    fill(memory, filling);
    float f[2];
    double d;
    std::memcpy(f, memory, 8);
    std::memcpy(&d, memory, 8);
    EXPECT_TRUE(std::isnan(f[0]) && std::isnan(f[1]) && std::isnan(d));
  }
}

TEST(MemoryCheck, ACopyThatDoesNotCopyIsNoKernelsFault) {
  const CheckMode on;
  EXPECT_THAT(run("scripted", "torn_copy"), AllOf(HasSubstr("plugin 'scripted' does not copy"),
                                                  HasSubstr("before a kernel ran")));
}

TEST(MemoryCheck, AnEventThatComesEarlyHasAPlugin) {
  const CheckMode on;
  const std::string said = run("scripted", "early_event", R"(
graph @early(%x: f32[5, 3]) -> (f32[5, 3], f32[5, 3]) {
  %0 = aten.neg(%x) : f32[5, 3]
  %1 = test.twice(%0) : f32[5, 3]
  %2 = aten.relu(%1) : f32[5, 3]
  return %0, %2
}
)");
  EXPECT_THAT(said, AllOf(HasSubstr("had changed"), HasSubstr("Plugin 'scripted' (scripted:0)"),
                          HasSubstr("an event may have come before its work")));
}

}  // namespace
}  // namespace backplane::runtime
