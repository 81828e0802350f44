#include "core/runtime/isolate/shared_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <limits>

namespace backplane::runtime {
namespace {

std::unique_ptr<SharedMemory> make() {
  Result<std::unique_ptr<SharedMemory>> made = SharedMemory::create();
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(*made) : nullptr;
}

TEST(SharedMemory, BlocksAreAlignedAndApart) {
  const auto memory = make();
  ASSERT_NE(memory, nullptr);
  const auto first = memory->take(1), second = memory->take(5000), third = memory->take(0);
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_EQ(*first % SharedMemory::kAlignment, 0u);
  EXPECT_EQ(*second, *first + 4096);
  EXPECT_EQ(*third, *second + 8192);
  std::memset(memory->at(*second), 7, 5000);
}

TEST(SharedMemory, WhatIsGivenBackBecomesOneBlockAgain) {
  const auto memory = make();
  ASSERT_NE(memory, nullptr);
  const std::uint64_t all = memory->mapping().bytes();
  const auto a = memory->take(4096), b = memory->take(4096), c = memory->take(4096);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_FALSE(memory->take(all).ok());
  memory->give(*a);
  memory->give(*c);
  memory->give(*b);
  memory->give(*b);  // twice is once
  const auto whole = memory->take(all);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  EXPECT_EQ(*whole, 0u);
}

TEST(SharedMemory, TooMuchIsAnError) {
  const auto memory = make();
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(memory->take(std::numeric_limits<std::uint64_t>::max()).status().code(),
            Code::kOutOfMemory);
}

TEST(SharedMemory, AnotherMappingSeesTheSame) {
  const auto memory = make();
  ASSERT_NE(memory, nullptr);
  auto again = SharedMapping::map(::dup(memory->mapping().fd()), memory->mapping().bytes());
  ASSERT_TRUE(again.ok()) << again.status().message();
  const auto block = memory->take(64);
  ASSERT_TRUE(block.ok());
  std::memcpy(memory->at(*block), "written", 8);
  EXPECT_STREQ(again->data() + *block, "written");
}

TEST(SharedMemory, ABlockGivesItselfBack) {
  const auto memory = make();
  ASSERT_NE(memory, nullptr);
  std::uint64_t offset = 0;
  {
    auto block = take_block(*memory, 64);
    ASSERT_TRUE(block.ok());
    const SharedBlock moved = std::move(*block);
    offset = moved.offset();
    EXPECT_NE(*memory->take(64), offset);
  }
  EXPECT_EQ(*memory->take(64), offset);
}

}  // namespace
}  // namespace backplane::runtime
