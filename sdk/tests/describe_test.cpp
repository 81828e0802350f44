// What a device says of itself stays where the host was told that it is.
#include <backplane/sdk/table.hpp>

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace backplane::sdk {
namespace {

class Talkative final : public Device {
 public:
  DeviceInfo info() const override {
    DeviceInfo info;
    info.name = "a name that is too long to lie in the string itself";
    info.rates = {{kFloat32, 1e12}};
    info.torch_device = "cuda:0";
    return info;
  }
  Result<Buffer> allocate(std::size_t bytes) override { return host_buffer(bytes); }
  Status copy(const Copy&, const Order&) override { return {}; }
  Claims claims(const GraphView&) override { return {}; }
  Result<std::unique_ptr<Executable>> compile(const Subgraph&, const CompileOptions&) override {
    return Status(BP_UNSUPPORTED, "nothing");
  }
};

TEST(Describe, ALaterAnswerLeavesAnEarlierOneWhole) {
  ASSERT_TRUE(Table<Talkative>::enumerate().ok());
  bp_plugin* const plugin = reinterpret_cast<bp_plugin*>(&detail::g_plugin);
  auto first = make<bp_device_info>(), second = make<bp_device_info>();
  ASSERT_EQ(Table<Talkative>::device_describe(plugin, 0, &first), nullptr);
  ASSERT_EQ(Table<Talkative>::device_describe(plugin, 0, &second), nullptr);
  EXPECT_EQ(first.name.data, second.name.data);
  EXPECT_EQ(first.rates, second.rates);
  EXPECT_EQ(view(first.name), "a name that is too long to lie in the string itself");
  EXPECT_EQ(view(first.torch_device), "cuda:0");
  detail::g_plugin.devices.clear();
}

}  // namespace
}  // namespace backplane::sdk
