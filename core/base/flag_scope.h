// A flag that is set while something runs, and is what it was before again however that ends.
#pragma once

#include <utility>

namespace backplane {

class FlagScope {
 public:
  explicit FlagScope(bool& flag) : flag_(flag), before_(std::exchange(flag, true)) {}
  ~FlagScope() { flag_ = before_; }
  FlagScope(const FlagScope&) = delete;
  FlagScope& operator=(const FlagScope&) = delete;

 private:
  bool& flag_;
  const bool before_;
};

}  // namespace backplane
