// How autocast stands on this thread: what a program under capture leaves otherwise is set once its
// graph has run.
#pragma once

#include <ATen/autocast_mode.h>

#include <vector>

namespace backplane::capture {

class AutocastState {
 public:
  static AutocastState current();
  void set() const;
  bool operator==(const AutocastState&) const = default;

 private:
  struct Device {
    at::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
    bool operator==(const Device&) const = default;
  };

  std::vector<Device> devices_;
  int nesting_ = 0;
  bool caches_ = false;
};

// Autocast as it was before the program, wherever its capture ended.
class KeptAutocast {
 public:
  KeptAutocast() : before_(AutocastState::current()) {}
  ~KeptAutocast() { before_.set(); }
  KeptAutocast(const KeptAutocast&) = delete;
  KeptAutocast& operator=(const KeptAutocast&) = delete;

 private:
  AutocastState before_;
};

}  // namespace backplane::capture
