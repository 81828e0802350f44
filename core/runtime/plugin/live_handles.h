// The objects of one kind that a plugin has made and was not asked to release: none is made twice.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

#include "core/base/status.h"

namespace backplane::runtime {

class LiveHandles {
 public:
  // False: it is in use, and whoever has it releases it.
  bool add(const void* handle) {
    const std::lock_guard lock(mutex_);
    return handles_.insert(handle).second;
  }
  // Before the release: another thread may get the same handle as soon as that ends.
  void remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    handles_.erase(handle);
  }

 private:
  std::mutex mutex_;  // not held over a plugin call
  std::unordered_set<const void*> handles_;
};

// `call`: "acme:0: buffer_create of 64 bytes"; `what`: "a buffer".
inline std::string in_use_text(std::string_view call, std::string_view what) {
  return std::string(call) + " answered " + std::string(what) +
         " that is in use; expected one of its own, which is released by itself";
}

}  // namespace backplane::runtime
