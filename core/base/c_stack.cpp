#include "core/base/c_stack.h"

#include <pthread.h>

#include <cstdint>
#include <limits>

namespace backplane {
namespace {

std::uintptr_t lowest_address() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  void* lowest = nullptr;
  std::size_t size = 0;
  const bool is_known = pthread_attr_getstack(&attributes, &lowest, &size) == 0;
  pthread_attr_destroy(&attributes);
  return is_known ? reinterpret_cast<std::uintptr_t>(lowest) : 0;
}

}  // namespace

std::size_t c_stack_left() {
  thread_local const std::uintptr_t lowest = lowest_address();
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  if (lowest == 0 || here < lowest) return std::numeric_limits<std::size_t>::max();
  return here - lowest;
}

}  // namespace backplane
