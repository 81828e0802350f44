#include "core/runtime/host/host_services.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <thread>

#include "core/runtime/host/error.h"
#include "core/runtime/host/process_state.h"
#include "core/runtime/watch/call_board.h"

namespace backplane::runtime {
namespace {

using ::testing::HasSubstr;

bp_string text(std::string_view view) { return {view.data(), view.size()}; }

// Two threads, as a framework's pool would.
void two_threads(std::size_t count, std::size_t grain, void* user,
                 void (*body)(void* user, std::size_t begin, std::size_t end)) {
  const std::size_t half = std::max(grain, (count + 1) / 2);
  std::thread other([&] {
    if (half < count) body(user, half, count);
  });
  body(user, 0, std::min(half, count));
  other.join();
}

class HostServicesTest : public ::testing::Test {
 protected:
  void TearDown() override { set_thread_hooks({}); }
  const bp_host_api& api_ = host_api();
  bp_host* host_ = host_api().host;
};

TEST_F(HostServicesTest, EveryEntryIsSet) {
  const auto* words = reinterpret_cast<void* const*>(&api_.error_create);
  const std::size_t count =
      (sizeof(bp_host_api) - offsetof(bp_host_api, error_create)) / sizeof(void*);
  for (std::size_t i = 0; i < count; ++i) EXPECT_NE(words[i], nullptr) << i;
  EXPECT_EQ(api_.struct_size, sizeof(bp_host_api));
  EXPECT_EQ(api_.span_begin(host_, text("kernel")), 0u);
}

struct Sums {
  std::atomic<std::size_t> items{0}, chunks{0}, nested_chunks{0};
};

bp_error* add_items(void* user, std::size_t begin, std::size_t end) {
  auto& sums = *static_cast<Sums*>(user);
  sums.items += end - begin;
  ++sums.chunks;
  return nullptr;
}

TEST_F(HostServicesTest, ParallelForCoversEverythingOnce) {
  for (const bool hooked : {false, true}) {
    if (hooked) set_thread_hooks({[] { return 2u; }, two_threads});
    Sums sums;
    EXPECT_EQ(api_.parallel_for(host_, 1001, 10, &sums, add_items), nullptr);
    EXPECT_EQ(sums.items, 1001u);
    EXPECT_EQ(sums.chunks, hooked ? 2u : 1u);
    EXPECT_EQ(api_.parallel_for(host_, 0, 0, &sums, add_items), nullptr);
    EXPECT_EQ(sums.chunks, hooked ? 2u : 1u);
  }
  EXPECT_EQ(api_.thread_count(host_), 2u);
}

TEST_F(HostServicesTest, NestedParallelForStaysInItsThread) {
  set_thread_hooks({nullptr, two_threads});
  const auto body = [](void*, std::size_t, std::size_t) -> bp_error* {
    Sums sums;
    bp_error* error = host_api().parallel_for(host_api().host, 100, 1, &sums, add_items);
    if (error == nullptr && sums.chunks != 1) return make_error(BP_INTERNAL, "not in one chunk");
    return error;
  };
  EXPECT_EQ(api_.parallel_for(host_, 2, 1, nullptr, body), nullptr);
}

TEST_F(HostServicesTest, ParallelForReturnsOneErrorAndKeepsExceptionsInside) {
  set_thread_hooks({nullptr, two_threads});
  const auto failing = [](void*, std::size_t, std::size_t) {
    return make_error(BP_UNSUPPORTED, "chunk");
  };
  EXPECT_EQ(take_error(api_.parallel_for(host_, 2, 1, nullptr, failing), "x").code(),
            Code::kUnsupported);
  const auto throwing = [](void*, std::size_t, std::size_t) -> bp_error* {
    throw std::runtime_error("bad chunk");
  };
  EXPECT_THAT(take_error(api_.parallel_for(host_, 2, 1, nullptr, throwing), "x").message(),
              HasSubstr("bad chunk"));
  EXPECT_FALSE(take_error(api_.parallel_for(host_, 2, 1, nullptr, nullptr), "x").ok());
}

TEST_F(HostServicesTest, CollectsClaimsAndRefusals) {
  ClaimCollector collector;
  std::uint32_t nodes[] = {1, 2, 3};
  bp_claim claim{};
  claim.struct_size = sizeof(claim);
  claim.node_ids = nodes;
  claim.node_count = 3;
  claim.flags = BP_CLAIM_DIVISIBLE | BP_CLAIM_ESTIMATED;
  claim.time_ns = 10;
  ASSERT_EQ(api_.claim_add(collector.sink(), &claim), nullptr);
  nodes[0] = 77;  // copied before the call returned
  ASSERT_EQ(api_.refuse_add(collector.sink(), 9, 4711, text("why")), nullptr);
  ASSERT_EQ(collector.claims.size(), 1u);
  EXPECT_THAT(collector.claims[0].node_ids, ::testing::ElementsAre(1, 2, 3));
  EXPECT_EQ(collector.claims[0].time_ns, 10);
  ASSERT_EQ(collector.refusals.size(), 1u);
  EXPECT_EQ(collector.refusals[0].reason, BP_REFUSED_OTHER);
  EXPECT_EQ(collector.refusals[0].text, "why");

  const auto refused = [&](auto change) {
    bp_claim bad = claim;
    change(bad);
    return take_error(api_.claim_add(collector.sink(), &bad), "x").code();
  };
  EXPECT_EQ(refused([](bp_claim& c) { c.struct_size = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](bp_claim& c) { c.struct_size -= 1; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](bp_claim& c) { c.struct_size = 1 << 20; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](bp_claim& c) { c.node_count = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](bp_claim& c) { c.node_ids = nullptr; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](bp_claim& c) { c.time_ns = std::nan(""); }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](bp_claim& c) { c.flags |= UINT64_C(1) << 50; }), Code::kUnsupported);
  EXPECT_EQ(take_error(api_.claim_add(nullptr, &claim), "x").code(), Code::kInvalidArgument);
  EXPECT_EQ(collector.claims.size(), 1u);
  claim.struct_size = sizeof(claim) + 64;  // of a newer plugin
  EXPECT_EQ(api_.claim_add(collector.sink(), &claim), nullptr);
}

TEST_F(HostServicesTest, WritesBytes) {
  bp_byte_sink* sink = api_.bytes_create(host_);
  ASSERT_NE(sink, nullptr);
  EXPECT_EQ(api_.bytes_write(sink, "abc", 3), nullptr);
  EXPECT_EQ(api_.bytes_write(sink, nullptr, 0), nullptr);
  EXPECT_EQ(take_error(api_.bytes_write(sink, nullptr, 3), "x").code(), Code::kInvalidArgument);
  EXPECT_EQ(copy_text(api_.bytes_view(sink)), "abc");
  api_.bytes_release(sink);
  api_.bytes_release(nullptr);
  ByteCollector collector;
  EXPECT_EQ(api_.bytes_write(collector.sink(), "xy", 2), nullptr);
  EXPECT_EQ(collector.bytes, "xy");
}

TEST_F(HostServicesTest, CachesByPlugin) {
  const bp_host_api* a = make_host_api("a", "1", "hash");
  const bp_host_api* b = make_host_api("b", "1", "hash");
  a->cache_put(a->host, text("key"), "value", 5);
  ByteCollector collector;
  EXPECT_EQ(b->cache_get(b->host, text("key"), collector.sink()), 0);
  EXPECT_EQ(collector.bytes, "");
  EXPECT_EQ(a->cache_get(a->host, text("key"), collector.sink()), 1);
  EXPECT_EQ(collector.bytes, "value");
  EXPECT_EQ(a->cache_get(a->host, text("other"), collector.sink()), 0);
  EXPECT_EQ(a->cache_get(a->host, {nullptr, 0}, collector.sink()), 0);
}

TEST_F(HostServicesTest, CollectsProfileRanges) {
  ProfileCollector collector;
  bp_profile_range range{};
  range.struct_size = sizeof(range);
  range.name = text("gemm");
  range.begin_ns = 5;
  range.end_ns = 9;
  api_.profile_add(collector.sink(), &range);
  range.end_ns = 1;  // ends before it begins
  api_.profile_add(collector.sink(), &range);
  ASSERT_EQ(collector.ranges.size(), 1u);
  EXPECT_EQ(collector.ranges[0].name, "gemm");
}

TEST_F(HostServicesTest, AsksForCancellation) {
  CancelToken token;
  EXPECT_EQ(api_.is_cancelled(nullptr), 0);
  EXPECT_EQ(api_.is_cancelled(token.handle()), 0);
  token.cancel();
  EXPECT_EQ(api_.is_cancelled(token.handle()), 1);
}

TEST_F(HostServicesTest, AsksTheProgramInTheThreadOfTheCallAlone) {
  CancelToken token;
  set_interrupt_check([] { return true; });
  std::int32_t elsewhere = -1;
  std::thread([&] { elsewhere = api_.is_cancelled(token.handle()); }).join();
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(api_.is_cancelled(token.handle()), 1);
  set_interrupt_check(nullptr);
  EXPECT_TRUE(token.was_cancelled());
}

// What a plugin does with handles that are none, or none any more: each is told and does nothing.
class MisuseTest : public HostServicesTest {
 protected:
  void SetUp() override { ::testing::internal::CaptureStderr(); }
  // What was told since.
  static std::string said() {
    std::string text = ::testing::internal::GetCapturedStderr();
    ::testing::internal::CaptureStderr();
    return text;
  }
  void TearDown() override { ::testing::internal::GetCapturedStderr(); }
  const bp_host_api* a_ = make_host_api("a", "1", "");
  const bp_host_api* b_ = make_host_api("b", "1", "");
  bp_error* error_of_a() {
    bp_error_args args{};
    args.struct_size = sizeof args;
    args.message = text("of a");
    return a_->error_create(a_->host, &args);
  }
};

TEST_F(MisuseTest, ErrorsAreReleasedOnceAndByTheirPlugin) {
  bp_error* const error = error_of_a();
  b_->error_release(b_->host, error);
  EXPECT_THAT(said(), HasSubstr("plugin 'b': error_release: the error "
                                "belongs to another plugin"));
  EXPECT_EQ(copy_text(a_->error_message(a_->host, error)), "of a");
  a_->error_release(a_->host, error);
  EXPECT_EQ(said(), "");
  a_->error_release(a_->host, error);
  EXPECT_THAT(said(), HasSubstr("error_release: the error was released"));
  bp_error* const next = error_of_a();  // in the same place
  a_->error_retain(a_->host, error);
  EXPECT_EQ(a_->error_code(a_->host, error), BP_INTERNAL);
  EXPECT_EQ(a_->error_message(a_->host, error).data, nullptr);
  EXPECT_THAT(take_error(error, "x").message(), HasSubstr("returned an error that was released"));
  EXPECT_THAT(said(), HasSubstr("error_message: the error was released"));
  EXPECT_THAT(take_error(next, "x").message(), HasSubstr("of a"));
  EXPECT_THAT(take_error(next, "x").message(), HasSubstr("returned an error that was released"));
}

TEST_F(MisuseTest, SinksEndWithTheirCall) {
  bp_claim_sink* claims = nullptr;
  bp_byte_sink* bytes = nullptr;
  bp_profile_sink* profile = nullptr;
  const bp_cancel* cancel = nullptr;
  {
    const ClaimCollector claim_collector;
    const ByteCollector byte_collector;
    const ProfileCollector profile_collector;
    const CancelToken token;
    claims = claim_collector.sink();
    bytes = byte_collector.sink();
    profile = profile_collector.sink();
    cancel = token.handle();
    api_.bytes_release(bytes);
    EXPECT_THAT(said(), HasSubstr("bytes_release: the sink is the host's"));
  }
  EXPECT_THAT(
      take_error(api_.refuse_add(claims, 1, BP_REFUSED_OP, text("late")), "x").message(),
      HasSubstr("refuse_add: the sink was released, or the call that it was for has ended"));
  EXPECT_EQ(take_error(api_.bytes_write(bytes, "x", 1), "x").code(), Code::kInvalidArgument);
  EXPECT_EQ(api_.bytes_view(bytes).data, nullptr);
  bp_profile_range range{};
  range.struct_size = sizeof range;
  said();
  api_.profile_add(profile, &range);
  EXPECT_THAT(said(), HasSubstr("profile_add: the sink was released"));
  EXPECT_EQ(api_.is_cancelled(cancel), 1);
  EXPECT_THAT(said(), HasSubstr("is_cancelled: the token was released"));
}

TEST_F(MisuseTest, HandlesOfAnotherKindOrOfNobody) {
  bp_byte_sink* const bytes = api_.bytes_create(host_);
  EXPECT_THAT(
      take_error(
          api_.refuse_add(reinterpret_cast<bp_claim_sink*>(bytes), 1, BP_REFUSED_OP, text("")), "x")
          .message(),
      HasSubstr("is a handle of another kind"));
  std::uint64_t memory[8] = {};
  EXPECT_THAT(
      take_error(api_.bytes_write(reinterpret_cast<bp_byte_sink*>(memory), "x", 1), "x").message(),
      HasSubstr("was not made by the host"));
  api_.bytes_release(bytes);
  said();
  api_.bytes_release(bytes);
  EXPECT_THAT(said(), HasSubstr("bytes_release: the sink was released"));
}

TEST_F(MisuseTest, SinksOfAnotherPluginsCall) {
  call_board();
  const ClaimCollector of_a("a");
  const CallScope scope("b:0", "claims");
  EXPECT_THAT(
      take_error(api_.refuse_add(of_a.sink(), 1, BP_REFUSED_OP, text("")), "x").message(),
      HasSubstr("plugin 'b' (b:0: claims): refuse_add: the sink belongs to another plugin"));
  EXPECT_TRUE(of_a.refusals.empty());
}

TEST_F(HostServicesTest, LogsUnderThePluginsName) {
  const bp_host_api* api = make_host_api("acme", "1", "");
  ::testing::internal::CaptureStderr();
  api->log(api->host, BP_LOG_WARNING, text("slow \x01 driver"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "backplane: plugin 'acme': slow ? driver\n");
  const std::uint64_t first = api->clock_ns(api->host);
  EXPECT_LE(first, api->clock_ns(api->host));
}

}  // namespace
}  // namespace backplane::runtime
