// Random numbers of a call that are drawn once more, because it runs again.
#pragma once

#include <ATen/core/Generator.h>

#include <utility>

#include "core/torch/bridge/generator_state.h"

namespace backplane::compiler {

// Where a generator stood before.
class Draws {
 public:
  explicit Draws(at::Generator generator)
      : generator_(std::move(generator)), before_(bridge::state_of(generator_)) {}
  void repeat() {
    after_ = bridge::state_of(generator_);
    go_back();
  }
  void go_back() { bridge::set_state(generator_, before_); }
  void go_on() { bridge::set_state(generator_, after_); }

 private:
  at::Generator generator_;
  at::Tensor before_, after_;
};

}  // namespace backplane::compiler
