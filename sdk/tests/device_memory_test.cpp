// Programs on a device that cannot read the host's memory.
#include <gtest/gtest.h>
#include <backplane/sdk/counted_memory.hpp>
#include <backplane/sdk/host_kernels.hpp>
#include <backplane/sdk/testing/graph_builder.hpp>
#include <backplane/sdk/testing/host.hpp>

#include <array>
#include <optional>

namespace backplane::sdk {
namespace {

// All memory of the device.
alignas(64) std::array<std::byte, 4096> g_memory;
std::size_t g_used = 0;

std::byte* take(std::size_t bytes) {
  std::byte* const at = g_memory.data() + g_used;
  g_used += (bytes + 63) / 64 * 64;
  return at;
}
bool is_there(const std::byte* at) {
  return at >= g_memory.data() && at < g_memory.data() + g_memory.size();
}

// Fails where an operand lies elsewhere.
class Strict final : public Kernel {
 public:
  Strict(std::unique_ptr<Kernel> inner, std::size_t operands)
      : inner_(std::move(inner)), operands_(operands) {}
  std::uint64_t scratch_bytes() const override { return inner_->scratch_bytes(); }
  Status run(const KernelCall& call) const override {
    for (std::size_t i = 0; i < operands_; ++i)
      if (call.operands[i] != nullptr && !is_there(call.operands[i]))
        return {BP_INTERNAL, "operand " + std::to_string(i) + " lies with the host"};
    return inner_->run(call);
  }

 private:
  std::unique_ptr<Kernel> inner_;
  std::size_t operands_;
};

class DeviceMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    detail::g_host = &testing::host_api();
    g_used = 0;
    // x * constant + number
    const auto x = builder_.input(kFloat32, {2});
    const auto number = builder_.input(kFloat32, {}, {}, BP_VALUE_HOST_SCALAR);
    const auto factor = builder_.constant(kFloat32, {2}, factor_.data(), sizeof factor_);
    const auto product = builder_.value(kFloat32, {2}), sum = builder_.value(kFloat32, {2});
    builder_.node("aten.mul.Tensor", {x, factor}, {product});
    builder_.node("aten.add.Tensor", {product, number}, {sum});
    builder_.output(sum);
    graph_ = builder_.graph();
    const GraphView view(graph_);
    program_ = std::make_unique<ProgramExecutable>(
        view, step_per_node(view),
        [this](const StepContext& step) -> Result<std::unique_ptr<Kernel>> {
          auto inner = table_.factory()(step);
          if (!inner.ok()) return inner.status();
          return std::make_unique<Strict>(std::move(*inner), step.step().operands.size());
        });
  }
  Status run(std::array<float, 2>& out) {
    const std::uint64_t bytes = *program_->workspace_bytes({});
    std::byte* const x = take(8);
    const std::array<float, 2> values{1, 2};
    std::memcpy(x, values.data(), 8);
    std::byte* const y = take(8);
    std::array<bp_binding, 3> bindings{};
    bindings[0].range = {nullptr, x, 0, 8};
    const float number = 0.5F;
    std::memcpy(bindings[1].scalar, &number, sizeof number);
    bindings[2].range = {nullptr, y, 0, 8};
    auto args = make<bp_execute_args>();
    args.inputs = bindings.data();
    args.outputs = bindings.data() + 2;
    args.binding_stride = sizeof(bp_binding);
    args.workspace = {nullptr, take(bytes), 0, bytes};
    Status status = program_->execute(Execution(args));
    std::memcpy(out.data(), y, 8);
    return status;
  }

  std::array<float, 2> factor_{10, 20};
  testing::GraphBuilder builder_;
  bp_graph graph_{};
  KernelTable table_{host_kernels::rows()};
  std::unique_ptr<ProgramExecutable> program_;
};

TEST_F(DeviceMemoryTest, WithoutItOperandsLieWithTheHost) {
  std::array<float, 2> out{};
  EXPECT_EQ(run(out).message(), "aten.mul.Tensor: operand 1 lies with the host");
}

TEST_F(DeviceMemoryTest, ConstantsAndNumbersAreBroughtThere) {
  const Status ready = program_->use_device_memory({
      [](const void* data, std::size_t bytes) -> Result<std::shared_ptr<std::byte>> {
        std::byte* const at = take(bytes);
        std::memcpy(at, data, bytes);
        return std::shared_ptr<std::byte>(at, [](std::byte*) {});
      },
      [](std::byte* to, const void* from, std::size_t bytes) -> Status {
        if (!is_there(to)) return {BP_INTERNAL, "not the device's memory"};
        std::memcpy(to, from, bytes);
        return {};
      },
  });
  ASSERT_TRUE(ready.ok()) << ready.message();
  std::array<float, 2> out{};
  const Status status = run(out);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(out, (std::array<float, 2>{10.5F, 40.5F}));
}

class Strictly final : public Device {
 public:
  DeviceInfo info() const override { return {}; }
  Result<Buffer> allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  Status copy(const Copy&, const Order&) override { return {BP_UNSUPPORTED, "no copies"}; }
  Claims claims(const GraphView&) override { return {}; }
  Result<std::unique_ptr<Executable>> compile(const Subgraph&, const CompileOptions&) override {
    return Status(BP_UNSUPPORTED, "no programs");
  }
  const CountedMemory& memory() const { return memory_; }

 private:
  CountedMemory memory_{64, [](std::size_t bytes) -> Result<Buffer> {
                          return Buffer(take(bytes), bytes, [](void*) {});
                        }};
};

TEST_F(DeviceMemoryTest, ConstantsLieInWhatADeviceAllocates) {
  Strictly device;
  const auto write = [](std::byte* to, const void* from, std::size_t bytes) -> Status {
    std::memcpy(to, from, bytes);
    return {};
  };
  ASSERT_TRUE(program_->use_device_memory(device, write).ok());
  EXPECT_EQ(device.memory().live_bytes(), sizeof factor_);
  std::array<float, 2> out{};
  const Status status = run(out);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(out, (std::array<float, 2>{10.5F, 40.5F}));
  program_ = nullptr;
  EXPECT_EQ(device.memory().live_bytes(), 0U);

  const auto fails = [](std::byte*, const void*, std::size_t) -> Status {
    return {BP_DEVICE_LOST, "no link"};
  };
  const GraphView view(graph_);
  ProgramExecutable program(view, step_per_node(view), table_.factory());
  EXPECT_EQ(program.use_device_memory(device, fails).message(), "no link");
  EXPECT_EQ(device.memory().live_bytes(), 0U);
}

TEST(CountedMemoryTest, HasALimitAndAPeak) {
  detail::g_host = &testing::host_api();
  std::optional<Buffer> kept;
  {
    const CountedMemory memory(100);
    auto first = memory.allocate(60);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(memory.allocate(41).status().message(),
              "out of device memory: 41 bytes wanted, 60 of 100 in use");
    EXPECT_EQ(memory.allocate(SIZE_MAX).status().code(), bp_code{BP_OUT_OF_MEMORY});
    EXPECT_EQ(memory.live_bytes(), 60U);
    auto second = memory.allocate(40);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(memory.live_bytes(), 100U);
    kept = std::move(*second);
    { const Buffer gone = std::move(*first); }
    EXPECT_EQ(memory.live_bytes(), 40U);
    EXPECT_EQ(memory.peak_bytes(), 100U);
    std::memset(kept->data(), 1, 40);
  }
  std::memset(kept->data(), 2, 40);  // buffers outlive what counts them
  const CountedMemory failing(
      100, [](std::size_t) -> Result<Buffer> { return Status(BP_DEVICE_LOST, "gone"); });
  EXPECT_EQ(failing.allocate(1).status().message(), "gone");
  EXPECT_EQ(failing.live_bytes(), 0U);
}

}  // namespace
}  // namespace backplane::sdk
