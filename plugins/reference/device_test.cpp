#include <backplane/sdk/testing/googletest.hpp>

#include <cstdlib>

namespace backplane::reference {
namespace {

using namespace sdk::testing;

TEST(Claims, RefuseWithAReason) {
  GraphBuilder g;
  constexpr bp_dtype kUnknown{10, 8, 1};
  const auto a = g.input(sdk::kFloat32, {2}), odd = g.input(kUnknown, {2});
  const auto b = g.value(sdk::kFloat32, {2}), c = g.value(sdk::kFloat32, {2});
  const auto d = g.value(kUnknown, {2});
  g.node("aten.relu", {a}, {b});
  g.node("vendor.unknown", {b}, {c});
  g.node("aten.neg", {odd}, {d});
  g.output(b);
  Session session;
  const ClaimAnswer claims = session.claims(g.graph());
  EXPECT_EQ(claims.claimed, (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(claims.refused.size(), 2u);
}

TEST(Streams, WorkRunsInOrderAcrossStreamsAndEvents) {
  ::setenv("BACKPLANE_REFERENCE_LATENCY_NS", "20000000", 1);
  Session session;
  ::unsetenv("BACKPLANE_REFERENCE_LATENCY_NS");
  const bp_plugin_api& api = session.api();
  bp_stream *first = session.stream(), *second = session.stream();
  bp_event *uploaded = session.event(), *downloaded = session.event();
  EXPECT_TRUE(session.is_done(uploaded));  // an event starts complete

  float in = 3, out = 0;
  bp_buffer* memory = session.buffer(4);
  require_ok(
      session.copy({nullptr, &in, 0, 4}, Session::range(memory, 4), {first, nullptr, 0, uploaded}));
  EXPECT_FALSE(session.is_done(uploaded));
  EXPECT_TRUE(fails_with(BP_TIMEOUT, api.event_wait(uploaded, 1)));
  require_ok(session.copy(Session::range(memory, 4), {nullptr, &out, 0, 4},
                          {second, &uploaded, 1, downloaded}));
  session.wait(downloaded);
  EXPECT_EQ(out, 3);
}

TEST(Streams, AFailureIsCarriedByEventsToWhatWaits) {
  GraphBuilder g;
  const auto w = g.input(sdk::kFloat32, {2, 1}), i = g.input(sdk::kInt64, {1});
  const auto out = g.value(sdk::kFloat32, {1, 1});
  g.node("aten.embedding", {w, i}, {out});
  g.output(out);
  Session session;
  const bp_plugin_api& api = session.api();
  bp_executable* x = session.compile(g.graph());
  bp_buffer *weight = session.upload<float>({1, 2}), *index = session.upload<std::int64_t>({9});
  bp_buffer* to = session.buffer(4);
  bp_stream* stream = session.stream();
  bp_event *ran = session.event(), *copied = session.event();
  require_ok(session.execute(x, {Session::range(weight, 8), Session::range(index, 8)},
                             {Session::range(to, 4)}, {stream, nullptr, 0, ran}));
  float host = 5;
  require_ok(
      session.copy(Session::range(to, 4), {nullptr, &host, 0, 4}, {stream, &ran, 1, copied}));
  EXPECT_TRUE(fails_with(BP_INVALID_ARGUMENT, api.event_wait(copied, UINT64_MAX)));
  EXPECT_TRUE(fails_with(BP_INVALID_ARGUMENT, api.event_wait(ran, UINT64_MAX)));
  EXPECT_EQ(host, 5);  // the copy was skipped
}

TEST(Memory, CountersFollowBuffers) {
  Session session;
  bp_buffer* memory = session.buffer(1000);
  bp_device_counters counters{};
  counters.struct_size = sizeof counters;
  require_ok(session.api().device_counters(session.device(), &counters));
  EXPECT_EQ(counters.live_bytes, 1000u);
  session.release(memory);
  require_ok(session.api().device_counters(session.device(), &counters));
  EXPECT_EQ(counters.live_bytes, 0u);
  EXPECT_EQ(counters.peak_bytes, 1000u);
}

// relu(x w^T) with the weight as linear's operand or transposed into a product.
GraphBuilder dense_layer(bool transposed) {
  GraphBuilder g;
  const auto x = g.input(sdk::kFloat32, {2, 3});
  const auto w = g.input(sdk::kFloat32, {9, 3}, {}, BP_VALUE_STATIC);
  const auto y = g.value(sdk::kFloat32, {2, 9});
  if (transposed) {
    const auto t = g.value(sdk::kFloat32, {3, 9}, {1, 3});
    g.view("aten.t", w, t);
    g.node("aten.mm", {x, t}, {y});
  } else {
    g.node("aten.linear", {x, w, BP_NONE}, {y});
  }
  g.output(y);
  return g;
}

class Layouts : public ::testing::TestWithParam<bool> {};
TEST_P(Layouts, APackedWeightGivesTheSameResult) {
  const GraphBuilder g = dense_layer(GetParam());
  Session session;
  Floats x(6), w(27);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) - 2;
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 7);
  bp_buffer *in = session.upload(x), *plain = session.upload(w);
  bp_buffer *expected = session.buffer(72), *out = session.buffer(72);

  bp_executable* strided = session.compile(g.graph());
  require_ok(session.execute(strided, {Session::range(in, 24), Session::range(plain, 108)},
                             {Session::range(expected, 72)}));
  bp_executable* packed = session.compile(g.graph(), BP_LAYOUT_ANY);
  const bp_layout layout = session.describe(packed).inputs[1].layout;
  ASSERT_EQ(layout.kind, bp_layout_kind{BP_LAYOUT_OPAQUE});
  EXPECT_EQ(session.describe(packed).inputs[0].layout.kind, bp_layout_kind{BP_LAYOUT_STRIDED});

  const std::int64_t dims[] = {9, 3};
  bp_tensor_desc source{};
  source.struct_size = sizeof source;
  source.dtype = sdk::kFloat32;
  source.rank = 2;
  source.dims = dims;
  source.layout.kind = BP_LAYOUT_STRIDED;
  bp_tensor_desc target = source;
  target.layout = layout;
  std::uint64_t bytes = 0;
  require_ok(session.api().layout_bytes(session.plugin(), &session.info(), &target, &bytes));
  EXPECT_GT(bytes, 108u);
  bp_buffer *pack = session.buffer(bytes), *back = session.buffer(108);
  const bp_range plain_range = Session::range(plain, 108), pack_range = Session::range(pack, bytes);
  const bp_range back_range = Session::range(back, 108);
  const bp_order order{};
  require_ok(session.api().layout_convert(session.device(), &source, &plain_range, &target,
                                          &pack_range, &order));
  require_ok(session.api().layout_convert(session.device(), &target, &pack_range, &source,
                                          &back_range, &order));
  EXPECT_EQ(session.download<float>(back, 27), w);
  require_ok(
      session.execute(packed, {Session::range(in, 24), pack_range}, {Session::range(out, 72)}));
  EXPECT_EQ(session.download<float>(out, 18), session.download<float>(expected, 18));
}
INSTANTIATE_TEST_SUITE_P(Weights, Layouts, ::testing::Bool());

TEST(Blobs, AnExecutableComesBack) {
  const GraphBuilder g = dense_layer(true);
  Session session;
  const bp_plugin_api& api = session.api();
  bp_executable* x = session.compile(g.graph());
  const bp_executable_info info = session.describe(x);
  std::uint32_t answer = 0;
  require_ok(api.blob_check(session.plugin(), &session.info(), info.requirement, &answer));
  EXPECT_EQ(answer, std::uint32_t{BP_BLOB_COMPATIBLE});
  require_ok(api.blob_check(session.plugin(), &session.info(), {"other", 5}, &answer));
  EXPECT_EQ(answer, std::uint32_t{BP_BLOB_RECOMPILE});
  const std::string blob = session.save(x);

  bp_executable* loaded = session.load(blob);
  bp_buffer *in = session.upload(Floats(6, 1)), *w = session.upload(Floats(27, 2));
  bp_buffer* out = session.buffer(72);
  require_ok(session.execute(loaded, {Session::range(in, 24), Session::range(w, 108)},
                             {Session::range(out, 72)}));
  EXPECT_EQ(session.download<float>(out, 18), Floats(18, 6));

  // Whatever is cut off or changed is refused.
  for (std::size_t at = 0; at < blob.size(); ++at) {
    std::string bent = blob;
    bent[at] = static_cast<char>(bent[at] ^ 0x41);
    for (const std::string& bad : {blob.substr(0, at), bent}) {
      bp_executable* none = nullptr;
      EXPECT_TRUE(fails_with(BP_DATA_CORRUPT,
                             api.executable_load(session.device(), bad.data(), bad.size(), &none)));
    }
  }
}

TEST(Execute, ARangeThatIsTooSmallIsRefused) {
  GraphBuilder g;
  const auto a = g.input(sdk::kFloat32, {4});
  const auto out = g.value(sdk::kFloat32, {4});
  g.node("aten.relu", {a}, {out});
  g.output(out);
  Session session;
  bp_executable* x = session.compile(g.graph());
  bp_buffer *in = session.upload(Floats(4, 1)), *to = session.buffer(8);
  EXPECT_TRUE(fails_with(BP_INVALID_ARGUMENT,
                         session.execute(x, {Session::range(in, 16)}, {Session::range(to, 8)})));
}

}  // namespace
}  // namespace backplane::reference
