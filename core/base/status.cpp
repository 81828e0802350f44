#include "core/base/status.h"

namespace backplane {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kOutOfMemory:
      return "out of memory";
    case Code::kResourceBusy:
      return "resource busy";
    case Code::kDeviceLost:
      return "device lost";
    case Code::kCancelled:
      return "cancelled";
    case Code::kTimeout:
      return "timeout";
    case Code::kDataCorrupt:
      return "data corrupt";
    case Code::kInternal:
      return "internal";
    case Code::kNotFound:
      return "not found";
    case Code::kVersionMismatch:
      return "version mismatch";
    case Code::kParseError:
      return "parse error";
    case Code::kWrongDevice:
      return "wrong device";
    case Code::kVerifyError:
      return "verify error";
    case Code::kEagerOnly:
      return "eager only";
    case Code::kProgramError:
      return "program error";
  }
  return "unknown code";
}

Status::Status(Code code, std::string message)
    : state_(std::make_unique<State>(State{code, std::move(message)})) {}

Status::Status(const Status& other)
    : state_(other.state_ ? std::make_unique<State>(*other.state_) : nullptr) {}

Status& Status::operator=(const Status& other) {
  if (this != &other) state_ = other.state_ ? std::make_unique<State>(*other.state_) : nullptr;
  return *this;
}

const std::string& Status::message() const {
  static const std::string empty;
  return state_ ? state_->message : empty;
}

std::string Status::to_string() const {
  if (!state_) return "ok";
  return std::string(code_name(state_->code)) + ": " + state_->message;
}

Status Status::with_context(std::string_view context) && {
  if (state_) state_->message.append("\n  while ").append(context);
  return std::move(*this);
}

}  // namespace backplane
