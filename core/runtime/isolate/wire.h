// What crosses to a worker and back, as bytes. Both ends are of one build: structs go as they are,
// without their pointers. The reader trusts no length, since a plugin that goes wild may have
// written any of them.
#pragma once

#include <backplane/plugin.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/runtime/host/graph_store.h"

namespace backplane::runtime {

// What may cross as it is: numbers, and the structs of this list, by their size when somebody last
// looked for pointers in them. The reader sets every one of those anew, or clears it. A struct that
// has grown does not compile until somebody has looked again.
template <class T>
inline constexpr std::size_t kWireSize = std::is_arithmetic_v<T> || std::is_enum_v<T> ? sizeof(T)
                                                                                      : 0;
template <class T, std::size_t kCount>
inline constexpr std::size_t kWireSize<T[kCount]> = kCount* kWireSize<T>;
template <class T, std::size_t kCount>
inline constexpr std::size_t kWireSize<std::array<T, kCount>> = kCount* kWireSize<T>;
#define BP_WIRE_SIZE(type, size) \
  template <>                    \
  inline constexpr std::size_t kWireSize<type> = size
BP_WIRE_SIZE(bp_dtype, 4);
BP_WIRE_SIZE(bp_layout, 16);
BP_WIRE_SIZE(bp_io_contract, 16);
BP_WIRE_SIZE(bp_node, 64);
BP_WIRE_SIZE(bp_value, 80);
BP_WIRE_SIZE(bp_attribute, 96);
BP_WIRE_SIZE(bp_op, 24);
BP_WIRE_SIZE(bp_dim_class, 64);
BP_WIRE_SIZE(bp_claim, 72);
BP_WIRE_SIZE(bp_device_rate, 16);
BP_WIRE_SIZE(bp_device_info, 192);
BP_WIRE_SIZE(bp_device_counters, 56);
BP_WIRE_SIZE(bp_executable_info, 80);
BP_WIRE_SIZE(bp_profile_range, 80);
#undef BP_WIRE_SIZE

class WireWriter {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(kWireSize<T> == sizeof(T) && std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(std::string_view text) {
    put<std::uint64_t>(text.size());
    bytes_.append(text);
  }
  void put_text(bp_string text) {
    put_text(text.data != nullptr ? std::string_view(text.data, text.size) : std::string_view());
  }
  template <class T>
  void put_array(const T* first, std::size_t count) {
    static_assert(kWireSize<T> == sizeof(T) && std::is_trivially_copyable_v<T>);
    put<std::uint64_t>(first != nullptr ? count : 0);
    if (first != nullptr && count != 0)
      bytes_.append(reinterpret_cast<const char*>(first), count * sizeof(T));
  }
  void append(const WireWriter& rest) { bytes_ += rest.bytes_; }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads in place: texts lie in the bytes it was given. After the first thing that does not fit all
// answers are empty, and ok() says so.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    T value{};
    const std::string_view taken = take(sizeof value);
    if (!taken.empty()) std::memcpy(&value, taken.data(), sizeof value);
    return value;
  }
  std::string_view text() { return take(get<std::uint64_t>()); }
  bp_string string() {
    const std::string_view taken = text();
    return {taken.data(), taken.size()};
  }
  template <class T>
  std::vector<T> array() {
    const auto count = get<std::uint64_t>();
    if (count > bytes_.size() / sizeof(T)) ok_ = false;
    if (!ok_ || count == 0) return {};
    const std::string_view taken = take(count * sizeof(T));
    std::vector<T> out(count);
    std::memcpy(out.data(), taken.data(), taken.size());
    return out;
  }
  bool ok() const { return ok_; }
  std::size_t left() const { return bytes_.size(); }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size()) ok_ = false;
    if (!ok_) return {};
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  std::string_view bytes_;
  bool ok_ = true;
};

// A bp_range: of a buffer of the worker's plugin, or of shared memory.
struct WireRange {
  std::uint64_t buffer = 0;
  std::uint64_t offset_bytes = 0;  // into the buffer, or into all of the shared memory
  std::uint64_t size_bytes = 0;
  std::uint32_t is_shared = 0, reserved = 0;
};
template <>
inline constexpr std::size_t kWireSize<WireRange> = 32;

void put_graph(WireWriter& out, const bp_graph& graph);
// A graph out of bytes, which must outlive it. Its indices are the sender's own.
class WireGraph {
 public:
  explicit WireGraph(WireReader& in);
  WireGraph(const WireGraph&) = delete;
  WireGraph& operator=(const WireGraph&) = delete;
  const bp_graph& get() const { return view_; }

 private:
  bp_graph view_{};
  GraphStore store_;
};

void put_info(WireWriter& out, const bp_device_info& info);
// Keeps its texts and rates itself. struct_size is as the plugin set it, for whoever checks that.
class WireInfo {
 public:
  explicit WireInfo(WireReader& in);
  WireInfo(const WireInfo&) = delete;
  WireInfo& operator=(const WireInfo&) = delete;
  bp_device_info& get() { return view_; }

 private:
  bp_device_info view_{};
  std::array<std::string, 5> texts_;
  std::vector<bp_device_rate> rates_;
};

void put_tensor(WireWriter& out, const bp_tensor_desc& desc);
class WireTensor {
 public:
  explicit WireTensor(WireReader& in);
  WireTensor(const WireTensor&) = delete;
  WireTensor& operator=(const WireTensor&) = delete;
  const bp_tensor_desc& get() const { return view_; }

 private:
  bp_tensor_desc view_{};
  std::vector<std::int64_t> dims_, strides_;
};

}  // namespace backplane::runtime
