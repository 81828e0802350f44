// Status and Result: how every fallible function of the core answers. No exceptions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace backplane {

// What went wrong, in the terms of the plugin ABI's bp_code plus the host's own kinds. Values up to
// kInternal equal bp_code.
enum class Code : std::uint32_t {
  kOk = 0,
  kInvalidArgument = 1,
  kUnsupported = 2,
  kOutOfMemory = 3,
  kResourceBusy = 4,
  kDeviceLost = 5,
  kCancelled = 6,
  kTimeout = 7,
  kDataCorrupt = 8,
  kInternal = 9,
  kNotFound = 100,
  kVersionMismatch = 101,
  kParseError = 102,
  kVerifyError = 103,
  kEagerOnly = 104,     // no graph of values says what the program does
  kProgramError = 105,  // PyTorch raises for what the program was given
  kWrongDevice = 106,   // its tensors are on another device than it was to run on
};

std::string_view code_name(Code code);

// No fault, and PyTorch does it instead.
constexpr bool is_unsupported(Code code) {
  return code == Code::kUnsupported || code == Code::kEagerOnly || code == Code::kProgramError;
}

// Success is a null pointer; a failure owns its code and message. The message is one full sentence
// without trailing newline; `with_context` puts "while ..." lines below it.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message);

  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  ~Status() = default;

  bool ok() const { return state_ == nullptr; }
  Code code() const { return state_ ? state_->code : Code::kOk; }
  const std::string& message() const;
  // "kind: message", or "ok".
  std::string to_string() const;
  Status with_context(std::string_view context) &&;

 private:
  struct State {
    Code code;
    std::string message;
  };
  std::unique_ptr<State> state_;
};

// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  Status take_status() { return std::move(status_); }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace backplane

#define BACKPLANE_CONCAT_(a, b) a##b
#define BACKPLANE_CONCAT(a, b) BACKPLANE_CONCAT_(a, b)

// Returns the Status of `expression` from the enclosing function when it failed.
#define BP_RETURN_IF_ERROR(expression)             \
  do {                                             \
    ::backplane::Status bp_status_ = (expression); \
    if (!bp_status_.ok()) return bp_status_;       \
  } while (false)

// BP_ASSIGN_OR_RETURN(auto x, f()): x is f()'s value, or the enclosing function returns its Status.
#define BP_ASSIGN_OR_RETURN(declaration, expression) \
  BP_ASSIGN_OR_RETURN_(BACKPLANE_CONCAT(bp_result_, __LINE__), declaration, expression)
#define BP_ASSIGN_OR_RETURN_(result, declaration, expression) \
  auto result = (expression);                                 \
  if (!result.ok()) return result.take_status();              \
  declaration = std::move(*result)
