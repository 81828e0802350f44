// The harness on a plugin that does what plugins must not: what it should find, it finds.
#include <backplane/sdk/table.hpp>
#include <backplane/sdk/testing/googletest.hpp>
#include <backplane/sdk/testing/library.hpp>
#include <backplane/sdk/testing/one_node.hpp>

#include <cstring>
#include <memory>
#include <string>

namespace backplane::sdk::testing {
namespace {

// Copies its input; "test.half" only half of it, "test.beyond" past its end, "test.fails" nothing.
class CopyExecutable : public Executable {
 public:
  CopyExecutable(std::string op, const GraphView& graph)
      : op_(std::move(op)), graph_(graph.raw()) {}
  Status execute(const Execution& call) override {
    if (op_ == "test.fails") return Status(BP_DEVICE_LOST, "the cable is out");
    const Range in(call.input(0).range), out(call.output(0).range);
    const std::size_t bytes = op_ == "test.half" ? out.bytes() / 2 : out.bytes();
    if (bytes != 0) std::memcpy(out.data(), in.data(), bytes);
    if (op_ == "test.beyond") *(out.data() + out.bytes()) = std::byte{1};
    return {};
  }

 private:
  std::string op_;
  OwnedGraph graph_;
};

class CopyDevice : public Device {
 public:
  DeviceInfo info() const override { return {"copies"}; }
  Result<Buffer> allocate(std::size_t bytes) override {
    return Buffer(new std::byte[bytes], bytes,
                  [](void* memory) { delete[] static_cast<std::byte*>(memory); });
  }
  Status copy(const Copy& copy, const Order& /*order*/) override {
    std::memcpy(copy.target.data(), copy.source.data(), copy.bytes());
    return {};
  }
  Claims claims(const GraphView& graph) override {
    return claim_where(graph, [](const NodeView& node) -> std::optional<Refusal> {
      if (node.op().starts_with("test.")) return std::nullopt;
      return Refusal{0, BP_REFUSED_OP, "copies alone"};
    });
  }
  Result<std::unique_ptr<Executable>> compile(const Subgraph& graph,
                                              const CompileOptions& /*options*/) override {
    return std::unique_ptr<Executable>(
        std::make_unique<CopyExecutable>(std::string(graph[0].op()), graph));
  }
};

// The text of what running one node throws; empty where nothing is.
std::string failure_of(const std::string& op) {
  OneNode node(op);
  node.in({4}, {1, 2, 3, 4}).out({4});
  Session session;
  try {
    node.run(session);
  } catch (const Failure& failure) {
    return failure.what();
  }
  EXPECT_EQ(node.result(0), (Floats{1, 2, 3, 4}));
  return "";
}

TEST(Session, SaysThatThereIsNoSuchDevice) {
  EXPECT_THROW(Session(&backplane_plugin_negotiate, 7), NoDevice);
}

TEST(Session, RunsANode) { EXPECT_EQ(failure_of("test.copy"), ""); }
TEST(Session, FindsAnElementThatIsNotWritten) {
  EXPECT_EQ(failure_of("test.half"), "output 0 is not written at byte 8");
}
TEST(Session, FindsAWriteBehindAnOutput) {
  EXPECT_EQ(failure_of("test.beyond"), "memory behind output 0 is written");
}
TEST(Session, SaysWhatThePluginSays) {
  EXPECT_EQ(failure_of("test.fails"), "the plugin answers code 5: the cable is out");
  EXPECT_EQ(failure_of("aten.relu"), "the plugin does not claim aten.relu\n  copies alone");
}
TEST(Session, SizesAreThoseOfTheCall) {
  GraphBuilder g;
  g.dim_class(1, 64, 8);
  const auto x = g.input(kFloat32, {-1, 2}, {2, 1}), y = g.value(kFloat32, {-1, 2}, {2, 1});
  g.node("test.copy", {x}, {y});
  g.output(y);
  HostTensor rows(kFloat32, {3, 2});
  rows.set_values(Floats{1, 2, 3, 4, 5, 6});
  Session session;
  const auto results = session.run(g.graph(), {rows}, {.dims = {3}});
  EXPECT_EQ(results.at(0).values(), rows.values());
}
TEST(Session, AssertionsShowTheErrorsText) {
  Session session;
  EXPECT_FALSE(session.has_streams());
  EXPECT_TRUE(succeeds(nullptr));
  EXPECT_FALSE(fails_with(BP_TIMEOUT, nullptr));
  const ::testing::AssertionResult answer = succeeds(Status(BP_TIMEOUT, "too slow").take());
  EXPECT_STREQ(answer.message(), "code 7: too slow");
}
TEST(Session, AFileThatIsNoPluginIsNamed) {
  EXPECT_THROW(load_plugin("/no/such/plugin.so"), Failure);
}

}  // namespace
}  // namespace backplane::sdk::testing

BP_PLUGIN("copies", "Backplane", "0.1.0", backplane::sdk::testing::CopyDevice)
