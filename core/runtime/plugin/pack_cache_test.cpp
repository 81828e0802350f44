#include "core/runtime/plugin/pack_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "core/runtime/testing/run_graph.h"

namespace backplane::runtime {
namespace {

using testing_graph::Floats;
using testing_graph::reference_device;
using testing_graph::scripted_device;

constexpr bp_layout kStrided{BP_LAYOUT_STRIDED, 0, 0};

struct Weight {
  explicit Weight(std::int64_t count) : data(static_cast<std::size_t>(count), 1), dims{count} {}
  StaticTensor tensor() const {
    StaticTensor out;
    out.data = out.storage = data.data();
    out.version = version;
    out.dims = dims;
    out.strides = strides;
    return out;
  }
  Floats data;
  std::vector<std::int64_t> dims, strides{1};
  std::uint64_t version = 0;
};

std::shared_ptr<const Pack> get(Device& device, const Weight& weight, bp_layout layout = kStrided) {
  auto pack = PackCache::instance().get(device, weight.tensor(), layout);
  EXPECT_TRUE(pack.ok()) << pack.status().message();
  return pack.ok() ? *pack : nullptr;
}

TEST(PackCache, SharesWhileSomebodyHoldsIt) {
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  const Weight weight(100);
  const std::uint64_t before = PackCache::instance().resident_bytes();
  auto first = get(*device, weight);
  auto second = get(*device, weight);
  EXPECT_EQ(first, second);
  EXPECT_EQ(PackCache::instance().resident_bytes(), before + 400);
  EXPECT_NE(get(*reference_device(1), weight), first);  // a device of its own
  first.reset();
  EXPECT_EQ(PackCache::instance().resident_bytes(), before + 400);
  second.reset();
  EXPECT_EQ(PackCache::instance().resident_bytes(), before);
}

TEST(PackCache, WhatMakesAPackStale) {
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  Weight weight(1000);
  const auto pack = get(*device, weight);
  ASSERT_NE(pack, nullptr);
  EXPECT_TRUE(pack->matches(weight.tensor(), false));
  ++weight.version;
  EXPECT_FALSE(pack->matches(weight.tensor(), false));
  EXPECT_NE(get(*device, weight), pack);
  --weight.version;
  weight.dims[0] = 999;
  EXPECT_FALSE(pack->matches(weight.tensor(), false));
  weight.dims[0] = 1000;
  StaticTensor other = weight.tensor();
  other.storage = &other;
  EXPECT_FALSE(pack->matches(other, false));
  weight.data.assign(1000, 2);  // written past the framework
  EXPECT_FALSE(pack->matches(weight.tensor(), false));
}

TEST(PackCache, AWriteToTheLastElementsOfASmallTensorIsSeen) {
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  Weight weight(3);
  const auto pack = get(*device, weight);
  weight.data[2] = 5;
  EXPECT_FALSE(pack->matches(weight.tensor(), false));
}

TEST(PackCache, EveryElementOfATensorOf64KilobytesCounts) {
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  Weight weight(16 << 10);
  for (std::size_t at = 0; at < weight.data.size(); at += 509) {
    const auto pack = get(*device, weight);
    ASSERT_TRUE(pack->matches(weight.tensor(), false));
    weight.data[at] += 1;
    EXPECT_FALSE(pack->matches(weight.tensor(), false)) << at;
  }
}

TEST(PackCache, AWriteToALargerTensorIsSeenWithinABoundOfCalls) {
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  for (const std::int64_t count : {(16 << 10) + 1, 700'001}) {
    Weight weight(count);
    for (const std::size_t at : {std::size_t{7}, weight.data.size() / 2, weight.data.size() - 2}) {
      const auto pack = get(*device, weight);
      for (int call = 0; call < 3; ++call) ASSERT_TRUE(pack->matches(weight.tensor(), false));
      weight.data[at] += 1;
      std::int64_t calls = 0;
      while (calls <= Pack::kRounds && pack->matches(weight.tensor(), false)) ++calls;
      EXPECT_LE(calls, Pack::kRounds) << at;
      EXPECT_NE(get(*device, weight), pack);
    }
  }
}

TEST(PackCache, OfATensorThatCountsNoWritesAllIsCompared) {
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  Weight weight(100'000);
  StaticTensor tensor = weight.tensor();
  tensor.counts_writes = false;
  const auto pack = get(*device, weight);
  ASSERT_TRUE(pack->matches(tensor, false));
  weight.data[50'001] += 1;
  EXPECT_FALSE(pack->matches(tensor, false));
}

TEST(PackCache, ForgetsWhatItIsTold) {
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  const Weight one(10), other(10);
  const auto first = get(*device, one), second = get(*device, other);
  const void* const storages[] = {one.data.data()};
  PackCache::instance().forget(storages);
  EXPECT_FALSE(first->matches(one.tensor(), false));
  EXPECT_NE(get(*device, one), first);
  EXPECT_EQ(get(*device, other), second);
}

TEST(PackCache, EmptyWeights) {
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  Weight weight(0);
  StaticTensor tensor = weight.tensor();
  tensor.data = tensor.storage = nullptr;
  const auto pack = PackCache::instance().get(*device, tensor, kStrided);
  ASSERT_TRUE(pack.ok()) << pack.status().message();
  EXPECT_TRUE((*pack)->matches(tensor, false));
  EXPECT_TRUE((*pack)->matches(tensor, false));
}

TEST(PackCache, AnOpaqueLayoutNeedsLayoutEntries) {
  Device* device = scripted_device();
  ASSERT_NE(device, nullptr);
  const Weight weight(4);
  const auto pack = PackCache::instance().get(*device, weight.tensor(), {BP_LAYOUT_OPAQUE, 0, 7});
  ASSERT_FALSE(pack.ok());
  EXPECT_THAT(pack.status().message(), ::testing::HasSubstr("opaque layout"));
}

TEST(PackCache, HoldsTheGuardAsLongAsThePack) {
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  const Weight weight(4);
  const auto storage = std::make_shared<int>(1);
  StaticTensor tensor = weight.tensor();
  tensor.guard_context = &storage;
  tensor.guard = [](const void* context) -> std::shared_ptr<void> {
    return *static_cast<const std::shared_ptr<int>*>(context);
  };
  auto pack = PackCache::instance().get(*device, tensor, kStrided);
  ASSERT_TRUE(pack.ok());
  EXPECT_EQ(storage.use_count(), 2);
  pack->reset();
  EXPECT_EQ(storage.use_count(), 1);
}

TEST(PackCache, ThreadsEndUpWithOnePack) {
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  const Weight weight(64);
  std::vector<std::shared_ptr<const Pack>> packs(8);
  std::vector<std::thread> threads;
  for (auto& pack : packs) threads.emplace_back([&] { pack = get(*device, weight); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& pack : packs) EXPECT_TRUE(pack && pack->matches(weight.tensor(), false));
  PackCache::instance().clear();
  EXPECT_EQ(PackCache::instance().resident_bytes(), 0u);
  EXPECT_TRUE(packs[0]->matches(weight.tensor(), false));  // lives on
}

// In a process of its own: the switch is read once.
TEST(PackCacheExact, SeesEveryWrite) {
  ::setenv("BACKPLANE_DEBUG_WEIGHTS", "1", 1);
  if (!exact_weight_checks()) GTEST_SKIP() << "another test asked before the switch was set";
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  Weight weight(4096);
  for (const std::size_t at : {1u, 777u, 4095u}) {
    const auto pack = get(*device, weight);
    ASSERT_TRUE(pack->matches(weight.tensor(), true));
    weight.data[at] = 3;
    EXPECT_FALSE(pack->matches(weight.tensor(), true)) << at;
    weight.data[at] = 1;
    EXPECT_FALSE(pack->matches(weight.tensor(), true)) << "another may have packed it anew";
  }
}

}  // namespace
}  // namespace backplane::runtime
