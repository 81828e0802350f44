// For a device that works in the host's memory, but knows memory by handles of its own: what a call
// binds of the host's is wrapped for the call.
#pragma once

#include <backplane/sdk/device.hpp>

#include <vector>

namespace backplane::sdk {

// A call's bindings and workspace, of which those on the host have the addresses of their wrappers.
// `Wrapper` is a pointer whose pointee has address(); each lives as long as this does.
template <class Wrapper>
class HostBindings {
 public:
  HostBindings(const Execution& call, std::size_t inputs, std::size_t outputs)
      : args_(call.raw()), outputs_(outputs) {
    bindings_.reserve(inputs + outputs);
    for (std::size_t i = 0; i < inputs; ++i) bindings_.push_back(call.input(i));
    for (std::size_t i = 0; i < outputs; ++i) bindings_.push_back(call.output(i));
  }

  // make(data, bytes) answers a Result<Wrapper>.
  template <class Make>
  Status wrap(const Make& make) {
    for (bp_binding& binding : bindings_) BP_SDK_RETURN_IF_ERROR(wrap_range(binding.range, make));
    return wrap_range(args_.workspace, make);
  }

  // Of a call with these; as long as this lives.
  const bp_execute_args& args() {
    args_.inputs = bindings_.data();
    args_.outputs = bindings_.data() + (bindings_.size() - outputs_);
    args_.binding_stride = sizeof(bp_binding);
    return args_;
  }

 private:
  template <class Make>
  Status wrap_range(bp_range& range, const Make& make) {
    if (range.buffer != nullptr || range.host == nullptr || range.size_bytes == 0) return {};
    Result<Wrapper> made =
        make(static_cast<std::byte*>(range.host) + range.offset_bytes, range.size_bytes);
    if (!made.ok()) return made.status();
    range.host = (*made)->address();
    range.offset_bytes = 0;
    wrappers_.push_back(std::move(*made));
    return {};
  }

  bp_execute_args args_;
  std::size_t outputs_;
  std::vector<bp_binding> bindings_;
  std::vector<Wrapper> wrappers_;
};

}  // namespace backplane::sdk
