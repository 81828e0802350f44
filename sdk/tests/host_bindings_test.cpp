#include <backplane/sdk/host_bindings.hpp>
#include <backplane/sdk/testing/host.hpp>

#include <gtest/gtest.h>

#include <array>

namespace backplane::sdk {
namespace {

// Shows its memory a million bytes further on.
class Window {
 public:
  Window(void* data, int& alive) : data_(static_cast<std::byte*>(data)), alive_(alive) { ++alive_; }
  ~Window() { --alive_; }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  std::byte* address() const { return data_ + 1000000; }

 private:
  std::byte* data_;
  int& alive_;
};
using WindowPtr = std::unique_ptr<Window>;

class HostBindingsTest : public ::testing::Test {
 protected:
  HostBindingsTest() {
    detail::g_host = &testing::host_api();
    bindings_[0].range = {nullptr, memory_.data(), 8, 16};
    bindings_[1].range = {buffer_, nullptr, 4, 16};
    bindings_[2].range = {nullptr, memory_.data(), 32, 16};
    args_.inputs = bindings_.data();
    args_.outputs = &bindings_[2];
    args_.binding_stride = sizeof(bp_binding);
    args_.workspace = {nullptr, memory_.data(), 0, 0};
  }

  std::array<std::byte, 64> memory_{};
  bp_buffer* buffer_ = reinterpret_cast<bp_buffer*>(&memory_);
  std::array<bp_binding, 3> bindings_{};
  bp_execute_args args_ = make<bp_execute_args>();
  int alive_ = 0;
};

TEST_F(HostBindingsTest, RangesOnTheHostAloneAreWrapped) {
  {
    HostBindings<WindowPtr> bound(Execution(args_), 2, 1);
    const auto make = [&](void* data, std::uint64_t bytes) -> Result<WindowPtr> {
      EXPECT_EQ(bytes, 16U);
      return std::make_unique<Window>(data, alive_);
    };
    EXPECT_TRUE(bound.wrap(make).ok());
    EXPECT_EQ(alive_, 2);
    const Execution call(bound.args());
    EXPECT_EQ(call.input(0).range.host, memory_.data() + 1000008);
    EXPECT_EQ(call.input(0).range.offset_bytes, 0U);
    EXPECT_EQ(call.input(1).range.buffer, buffer_);
    EXPECT_EQ(call.input(1).range.offset_bytes, 4U);
    EXPECT_EQ(call.output(0).range.host, memory_.data() + 1000032);
    EXPECT_EQ(call.workspace().bytes(), 0U);
  }
  EXPECT_EQ(alive_, 0);
  EXPECT_EQ(bindings_[0].range.host, memory_.data());  // the host's own are as they were
}

TEST_F(HostBindingsTest, AWrapperThatCannotBeMadeIsTheAnswer) {
  HostBindings<WindowPtr> bound(Execution(args_), 2, 1);
  const auto fails = [](void*, std::uint64_t) -> Result<WindowPtr> {
    return Status(BP_OUT_OF_MEMORY, "no handles left");
  };
  EXPECT_EQ(bound.wrap(fails).message(), "no handles left");
}

}  // namespace
}  // namespace backplane::sdk
