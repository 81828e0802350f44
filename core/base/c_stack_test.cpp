#include "core/base/c_stack.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace backplane {
namespace {

constexpr std::size_t kSize = 512 << 10;

// As a function sees it that is called from a frame of 64 KiB.
[[gnu::noinline]] std::size_t left_below_a_large_frame() {
  volatile char held[64 << 10];
  held[0] = 0;
  const std::size_t left = c_stack_left();
  return left + static_cast<std::size_t>(held[0]);
}

TEST(CStack, ShrinksWithEachFrame) {
  std::size_t left[2] = {};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kSize), 0);
  pthread_t thread;
  const auto measure = [](void* out) -> void* {
    auto* sizes = static_cast<std::size_t*>(out);
    sizes[0] = c_stack_left();
    sizes[1] = left_below_a_large_frame();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, measure, left), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  EXPECT_LE(left[0], kSize);
  EXPECT_GE(left[0], kSize / 2);
  EXPECT_LE(left[1], left[0] - (64 << 10));
}

}  // namespace
}  // namespace backplane
