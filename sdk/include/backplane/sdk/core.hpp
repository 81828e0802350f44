// Status, Result, the exception shield, access to the host's services, struct-size handling.
#pragma once

#include <backplane/plugin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace backplane::sdk {

inline namespace literals {
constexpr std::uint64_t operator""_KiB(unsigned long long n) { return n << 10; }
constexpr std::uint64_t operator""_MiB(unsigned long long n) { return n << 20; }
constexpr std::uint64_t operator""_GiB(unsigned long long n) { return n << 30; }
}  // namespace literals

inline bp_string raw(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view view(bp_string text) { return {text.data, text.size}; }

// A struct of class "grows": zeroed and sized.
template <class T>
T make() {
  T value;
  std::memset(&value, 0, sizeof value);
  value.struct_size = sizeof value;
  return value;
}
// Reads a peer's struct of any size: what it has, the rest zero.
template <class T>
T read(const T* theirs) {
  T value = make<T>();
  std::memcpy(&value, theirs, std::min(theirs->struct_size, sizeof value));
  value.struct_size = sizeof value;
  return value;
}
// Answers into a peer's struct of any size.
template <class T>
void answer(T* out, T mine) {
  mine.struct_size = std::min(out->struct_size, sizeof mine);
  std::memcpy(out, &mine, mine.struct_size);
}

// Whether a peer's struct says a size that it can have: not less than the first version had, and no
// nonsense.
template <class T>
bool has_possible_size(const T* theirs) {
  return theirs->struct_size >= sizeof(T) && theirs->struct_size <= BP_STRUCT_SIZE_LIMIT;
}

namespace detail {
inline const bp_host_api* g_host = nullptr;  // set once, at negotiation, before any other call
}
inline const bp_host_api& host() { return *detail::g_host; }

// The caller's place in the source, by compiler built-ins: std::source_location is missing from
// some compilers that vendors use (clang 14 with libstdc++).
struct SourcePlace {
  const char* file;
  const char* function;
  unsigned line;
  static constexpr SourcePlace current(const char* file = __builtin_FILE(),
                                       const char* function = __builtin_FUNCTION(),
                                       unsigned line = __builtin_LINE()) {
    return {file, function, line};
  }
  static constexpr SourcePlace nowhere() { return {"", "", 0}; }
};

// Owns the host's error object; empty is success.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(bp_code code, std::string_view message, SourcePlace where = SourcePlace::current())
      : Status(code, message, {}, where) {}
  // A failure that is about nodes, by their ids: the host tells them to the user, and where
  // `compile` fails it takes these nodes from the plugin and keeps the others there.
  Status(bp_code code, std::string_view message, std::span<const std::uint32_t> node_ids,
         SourcePlace where = SourcePlace::current())
      : where_(where), names_nodes_(!node_ids.empty()) {
    auto args = make<bp_error_args>();
    args.code = code;
    args.message = raw(message);
    args.file = raw(where.file);
    args.function = raw(where.function);
    args.line = where.line;
    args.node_ids = node_ids.data();
    args.node_count = node_ids.size();
    error_ = host().error_create(host().host, &args);
  }
  // Takes over `error`, which may be null.
  static Status adopt(bp_error* error) {
    Status status;
    status.error_ = error;
    return status;
  }
  Status(Status&& other) noexcept
      : error_(std::exchange(other.error_, nullptr)),
        where_(other.where_),
        names_nodes_(other.names_nodes_) {}
  Status& operator=(Status&& other) noexcept {
    std::swap(error_, other.error_);
    where_ = other.where_;
    names_nodes_ = other.names_nodes_;
    return *this;
  }
  Status(const Status& other)
      : error_(other.error_), where_(other.where_), names_nodes_(other.names_nodes_) {
    if (error_) host().error_retain(host().host, error_);
  }
  Status& operator=(const Status& other) { return *this = Status(other); }
  ~Status() {
    if (error_) host().error_release(host().host, error_);
  }

  bool ok() const { return error_ == nullptr; }
  bp_code code() const { return error_ ? host().error_code(host().host, error_) : bp_code{BP_OK}; }
  std::string_view message() const {
    return error_ ? view(host().error_message(host().host, error_)) : std::string_view{};
  }
  bp_error* take() { return std::exchange(error_, nullptr); }  // owned by the receiver

  // The failure as one about these nodes, its message behind `label` where that is not in it; as it
  // is where it names nodes already.
  Status about(std::span<const std::uint32_t> node_ids, std::string_view label) const {
    const std::string_view text = message();
    if (ok() || names_nodes_) return *this;
    if (text.find(label) != std::string_view::npos) return {code(), text, node_ids, where_};
    return {code(), std::string(label) + ": " + std::string(text), node_ids, where_};
  }

 private:
  bp_error* error_ = nullptr;
  SourcePlace where_ = SourcePlace::nowhere();  // of what was made here
  bool names_nodes_ = false;
};

// INVALID_ARGUMENT where a peer's struct cannot be read or answered into.
template <class T>
Status check_size(const T* theirs, SourcePlace where = SourcePlace::current()) {
  if (has_possible_size(theirs)) return {};
  return {BP_INVALID_ARGUMENT,
          "a struct_size of " + std::to_string(theirs->struct_size) +
              " is not possible, expected " + std::to_string(sizeof(T)) + " or more",
          where};
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
  template <class U>
  requires(std::is_convertible_v<U&&, T> && !std::is_same_v<std::decay_t<U>, T> &&
           !std::is_same_v<std::decay_t<U>, Status> && !std::is_same_v<std::decay_t<U>, Result>)
      Result(U&& value)  // NOLINT
      : value_(std::forward<U>(value)) {}

  bool ok() const { return value_.has_value(); }
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }
  Status status() { return std::move(status_); }

 private:
  std::optional<T> value_;
  Status status_;
};

// What `body` answers; exceptions become errors. Where they were thrown is not known.
template <class F>
Status guarded(F&& body) noexcept {
  constexpr SourcePlace kNowhere = SourcePlace::nowhere();
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return {BP_OUT_OF_MEMORY, "out of host memory", kNowhere};
  } catch (const std::exception& exception) {
    return {BP_INTERNAL, exception.what(), kNowhere};
  } catch (...) {
    return {BP_INTERNAL, "unknown exception", kNowhere};
  }
}

// Nothing thrown gets past it: exceptions become errors on the plugin's own side of the boundary.
template <class F>
bp_error* shield(F&& body) noexcept {
  return guarded(std::forward<F>(body)).take();
}

inline void log(std::uint32_t level, std::string_view message) {
  host().log(host().host, level, raw(message));
}
// How many threads a kernel should use; a plugin with its own pool keeps to it.
inline std::uint32_t thread_count() { return host().thread_count(host().host); }
// Runs body(begin, end) over [0, count) in chunks of at least `grain` on the host's threads;
// returns when all are done. The first failure is returned.
template <class Body>
Status parallel_for(std::size_t count, std::size_t grain, const Body& body) {
  return Status::adopt(host().parallel_for(host().host, count, grain, const_cast<Body*>(&body),
                                           [](void* user, std::size_t begin, std::size_t end) {
                                             return shield([&] {
                                               return (*static_cast<const Body*>(user))(begin, end);
                                             });
                                           }));
}

}  // namespace backplane::sdk

#define BP_SDK_CONCAT_(a, b) a##b
#define BP_SDK_CONCAT(a, b) BP_SDK_CONCAT_(a, b)
#define BP_SDK_RETURN_IF_ERROR(expression)                  \
  do {                                                      \
    ::backplane::sdk::Status bp_sdk_status_ = (expression); \
    if (!bp_sdk_status_.ok()) return bp_sdk_status_;        \
  } while (false)
