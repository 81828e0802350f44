// Kernels behind tensors that the table makes dense for them.
#include <gtest/gtest.h>
#include <backplane/sdk/host_kernels.hpp>
#include <backplane/sdk/testing/graph_builder.hpp>
#include <backplane/sdk/testing/host.hpp>

#include <algorithm>
#include <array>
#include <cstring>

namespace backplane::sdk {
namespace {

struct Stream final : CallContext {
  int launches = 0;
};

// Works on the call's stream alone.
class Launched final : public Kernel {
 public:
  explicit Launched(const StepContext& step) : count_(step.result().elements()) {}
  std::uint64_t scratch_bytes() const override { return 64; }
  Status run(const KernelCall& call) const override {
    if (call.context == nullptr) return {BP_INTERNAL, "no stream"};
    ++static_cast<Stream*>(call.context)->launches;
    std::memset(call.scratch, 0xff, 64);  // what lies beside it stays
    for (std::int64_t i = 0; i < count_; ++i)
      host_kernels::out(call)[i] = std::max(host_kernels::in(call, 0)[i], 0.0F);
    return {};
  }

 private:
  std::int64_t count_;
};

TEST(KernelTable, KernelsOfTurnedTensorsHaveTheCallsContext) {
  detail::g_host = &testing::host_api();
  testing::GraphBuilder builder;
  const auto x = builder.input(kFloat32, {2, 3}, {1, 2});
  const auto y = builder.value(kFloat32, {2, 3}, {1, 2});
  builder.node("aten.relu", {x}, {y});
  builder.output(y);
  const bp_graph graph = builder.graph();
  const GraphView view(graph);
  const KernelTable table{
      {{"aten.relu", [](const StepContext& step) -> Result<std::unique_ptr<Kernel>> {
          return std::make_unique<Launched>(step);
        }}}};
  ProgramExecutable program(view, step_per_node(view), table.factory());

  std::array<float, 6> in{-1, 1, -2, 2, -3, 3}, out{};
  const std::uint64_t bytes = *program.workspace_bytes({});
  std::vector<std::byte> memory(bytes + 64);
  auto* const workspace = reinterpret_cast<std::byte*>(
      (reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
  std::array<bp_binding, 2> bindings{};
  bindings[0].range = {nullptr, in.data(), 0, sizeof in};
  bindings[1].range = {nullptr, out.data(), 0, sizeof out};
  auto args = make<bp_execute_args>();
  args.inputs = bindings.data();
  args.outputs = bindings.data() + 1;
  args.binding_stride = sizeof(bp_binding);
  args.workspace = {nullptr, workspace, 0, bytes};
  Stream stream;
  const Status status = program.run(Execution(args), &stream);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(stream.launches, 1);
  EXPECT_EQ(out, (std::array<float, 6>{0, 1, 0, 2, 0, 3}));
}

// The nodes that a failure names, as the host hears it.
std::vector<std::uint32_t> nodes_of(Status status) {
  bp_error* const error = status.take();
  std::vector<std::uint32_t> nodes = testing::host_error(error)->node_ids;
  testing::host_api().error_release(nullptr, error);
  return nodes;
}

struct TwoNodes {
  TwoNodes() {
    detail::g_host = &testing::host_api();
    const auto x = builder.input(kFloat32, {2}, {1});
    const auto y = builder.value(kFloat32, {2}, {1});
    const auto z = builder.value(kFloat32, {2}, {1});
    builder.node("aten.relu", {x}, {y});
    builder.node("aten.neg", {y}, {z});
    builder.output(z);
    graph = builder.graph();
  }
  testing::GraphBuilder builder;
  bp_graph graph{};
};

TEST(KernelTable, AKernelThatCannotBeMadeNamesItsNode) {
  const TwoNodes nodes;
  const GraphView view(nodes.graph);
  const KernelTable table{{{"aten.relu",
                            [](const StepContext& step) -> Result<std::unique_ptr<Kernel>> {
                              return std::make_unique<Launched>(step);
                            }},
                           {"aten.neg", [](const StepContext&) -> Result<std::unique_ptr<Kernel>> {
                              return Status(BP_UNSUPPORTED, "not at this size");
                            }}}};
  ProgramExecutable program(view, step_per_node(view), table.factory());
  auto bytes = program.workspace_bytes({});
  ASSERT_FALSE(bytes.ok());
  const Status status = bytes.status();
  EXPECT_EQ(status.code(), BP_UNSUPPORTED);
  EXPECT_EQ(status.message(), "aten.neg: not at this size");
  EXPECT_EQ(nodes_of(status), (std::vector<std::uint32_t>{view[1].id()}));
}

// Throws a number where it is run.
class Throws final : public Kernel {
 public:
  Status run(const KernelCall&) const override { throw 5; }
};

TEST(KernelTable, AnExceptionNamesItsNode) {
  const TwoNodes nodes;
  const GraphView view(nodes.graph);
  const auto launched = [](const StepContext& step) -> Result<std::unique_ptr<Kernel>> {
    return std::make_unique<Launched>(step);
  };
  const auto no_kernel = [](const StepContext&) -> Result<std::unique_ptr<Kernel>> {
    throw std::runtime_error("not at this size");
  };
  const auto throws = [](const StepContext&) -> Result<std::unique_ptr<Kernel>> {
    return std::make_unique<Throws>();
  };
  const KernelTable made{{{"aten.relu", launched}, {"aten.neg", no_kernel}}};
  Status status =
      ProgramExecutable(view, step_per_node(view), made.factory()).workspace_bytes({}).status();
  EXPECT_EQ(status.code(), BP_INTERNAL);
  EXPECT_EQ(status.message(), "aten.neg: not at this size");
  EXPECT_EQ(nodes_of(status), (std::vector<std::uint32_t>{view[1].id()}));

  const KernelTable run{{{"aten.relu", throws}, {"aten.neg", throws}}};
  ProgramExecutable program(view, step_per_node(view), run.factory());
  program.bring_workspace();
  std::array<float, 6> in{}, out{};
  std::array<bp_binding, 2> bindings{};
  bindings[0].range = {nullptr, in.data(), 0, sizeof in};
  bindings[1].range = {nullptr, out.data(), 0, sizeof out};
  auto args = make<bp_execute_args>();
  args.inputs = bindings.data();
  args.outputs = &bindings[1];
  args.binding_stride = sizeof(bp_binding);
  status = program.execute(Execution(args));
  EXPECT_EQ(status.message(), "aten.relu: unknown exception");
  EXPECT_EQ(nodes_of(status), (std::vector<std::uint32_t>{view[0].id()}));
}

// As parallel_for answers.
TEST(Status, AnErrorOfTheHostsMayBeAboutNodes) {
  detail::g_host = &testing::host_api();
  const std::array<std::uint32_t, 1> node{9};
  const Status status = Status::adopt(Status(BP_INTERNAL, "broken").take());
  EXPECT_EQ(status.about(node, "aten.neg").message(), "aten.neg: broken");
  EXPECT_EQ(nodes_of(status.about(node, "aten.neg")), (std::vector<std::uint32_t>{9}));
}

TEST(Status, WhatNamesNodesKeepsThem) {
  detail::g_host = &testing::host_api();
  const std::array<std::uint32_t, 2> inner{7, 8};
  const std::array<std::uint32_t, 1> outer{9};
  const Status status(BP_INTERNAL, "broken", inner);
  EXPECT_EQ(nodes_of(status.about(outer, "aten.neg")), (std::vector<std::uint32_t>{7, 8}));
  EXPECT_EQ(status.about(outer, "aten.neg").message(), "broken");
  EXPECT_TRUE(Status().about(outer, "aten.neg").ok());
}

}  // namespace
}  // namespace backplane::sdk
