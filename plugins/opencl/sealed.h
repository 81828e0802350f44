// What the host's cache keeps, with a check sum before it: what is torn is not used.
#pragma once

#include <backplane/kernelgen/kernel.hpp>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "memory.h"

namespace backplane::opencl {

inline void put_sealed(const std::string& key, const std::string& content) {
  const std::uint64_t sum = kernelgen::hash_text(content);
  const std::string sealed = std::string(reinterpret_cast<const char*>(&sum), sizeof sum) + content;
  sdk::host().cache_put(sdk::host().host, sdk::raw(key), sealed.data(), sealed.size());
}

// Empty where there is nothing whole.
inline std::string get_sealed(const std::string& key) {
  bp_byte_sink* sink = sdk::host().bytes_create(sdk::host().host);
  if (sink == nullptr) return {};
  std::string content;
  std::uint64_t sum = 0;
  if (sdk::host().cache_get(sdk::host().host, sdk::raw(key), sink) == 1) {
    const std::string_view sealed = sdk::view(sdk::host().bytes_view(sink));
    if (sealed.size() > sizeof sum) {
      std::memcpy(&sum, sealed.data(), sizeof sum);
      content = sealed.substr(sizeof sum);
    }
  }
  sdk::host().bytes_release(sink);
  return kernelgen::hash_text(content) == sum ? content : std::string();
}

}  // namespace backplane::opencl
