#include "core/runtime/host/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/runtime/host/host_services.h"

namespace backplane::runtime {
namespace {

bp_string text(std::string_view view) { return {view.data(), view.size()}; }

TEST(Error, KeepsWhatItWasMadeFrom) {
  const bp_host_api& api = host_api();
  const std::uint32_t nodes[] = {3, 4};
  bp_error_args args{};
  args.struct_size = sizeof(args);
  args.code = BP_DEVICE_LOST;
  args.line = 12;
  args.message = text("the queue died");
  args.file = text("queue.cpp");
  args.function = text("finish");
  args.node_ids = nodes;
  args.node_count = 2;
  bp_error* error = api.error_create(api.host, &args);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(api.error_code(api.host, error), BP_DEVICE_LOST);
  const Status status = take_error(error, "acme:0: execute");
  EXPECT_EQ(status.code(), Code::kDeviceLost);
  EXPECT_EQ(status.message(),
            "acme:0: execute failed: the queue died (nodes 3, 4) (at queue.cpp:12 finish)");
}

TEST(Error, NullIsSuccess) {
  EXPECT_TRUE(take_error(nullptr, "x").ok());
  EXPECT_EQ(read_error(nullptr).code, BP_OK);
  EXPECT_EQ(host_api().error_code(host_api().host, nullptr), BP_OK);
  host_api().error_release(host_api().host, nullptr);
}

TEST(Error, BadArgumentsStillMakeAnError) {
  const bp_host_api& api = host_api();
  bp_error_args args{};
  for (const std::size_t size : {std::size_t{0}, sizeof(args) - 1, std::size_t{1} << 40}) {
    args.struct_size = size;
    const Status status = take_error(api.error_create(api.host, &args), "x");
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("struct_size"));
  }
  EXPECT_EQ(take_error(api.error_create(api.host, nullptr), "x").code(), Code::kInternal);
  args.struct_size = sizeof(args);
  args.code = 4711;  // unknown and OK are INTERNAL
  EXPECT_EQ(take_error(api.error_create(api.host, &args), "x").code(), Code::kInternal);
  args.code = BP_OK;
  EXPECT_EQ(take_error(api.error_create(api.host, &args), "x").code(), Code::kInternal);
}

TEST(Error, IsCountedAcrossThreads) {
  const bp_host_api& api = host_api();
  bp_error* error = make_error(BP_TIMEOUT, "late");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    api.error_retain(api.host, error);
    threads.emplace_back([&] {
      for (int round = 0; round < 1000; ++round) {
        api.error_retain(api.host, error);
        api.error_release(api.host, error);
      }
      api.error_release(api.host, error);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(read_error(error).message, "late");
  api.error_release(api.host, error);
}

TEST(CopyText, MakesTextFitForMessages) {
  EXPECT_EQ(copy_text({nullptr, 5}), "");
  EXPECT_EQ(copy_text(text("gr\xc3\xbc\xc3\x9f")), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(copy_text(text("a\xff\xc3(\x01z")),
            "a?"
            "?(?z");
  EXPECT_EQ(copy_text(text("\xed\xa0\x80")), "???");  // a surrogate
  EXPECT_EQ(copy_text(text("abcdef"), 3), "abc...");
  const std::string long_one(std::size_t{1} << 25, 'x');
  EXPECT_EQ(copy_text(text(long_one)), std::string(400, 'x') + "... (a text of 33554432 bytes)");
  EXPECT_EQ(copy_text({"begin", std::size_t{1} << 60}),
            "begin... (a text of 1152921504606846976 bytes)");
  EXPECT_EQ(copy_text({reinterpret_cast<const char*>(16), std::size_t{1} << 60}),
            "... (a text of 1152921504606846976 bytes)");
  EXPECT_EQ(copy_text(text("ab\xc3\xbcz"), 3), "ab...");  // not cut inside a character
}

}  // namespace
}  // namespace backplane::runtime
