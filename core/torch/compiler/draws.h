// Random numbers of a call that are drawn once more, because it runs again.
#pragma once

#include <ATen/core/Generator.h>

#include <mutex>
#include <utility>

namespace backplane::compiler {

// Where a generator stood before.
class Draws {
 public:
  explicit Draws(at::Generator generator) : generator_(std::move(generator)), before_(state()) {}
  void repeat() {
    after_ = state();
    go_back();
  }
  void go_back() { set(before_); }
  void go_on() { set(after_); }

 private:
  at::Tensor state() {
    const std::lock_guard lock(generator_.mutex());
    return generator_.get_state();
  }
  void set(const at::Tensor& state) {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state);
  }
  at::Generator generator_;
  at::Tensor before_, after_;
};

}  // namespace backplane::compiler
