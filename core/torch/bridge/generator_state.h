// Where a generator of random numbers stands, under its lock.
#pragma once

#include <ATen/core/Generator.h>

#include <mutex>

namespace backplane::bridge {

inline at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

inline void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace backplane::bridge
