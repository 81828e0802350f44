// The few host services that this plugin's own tests need.
#pragma once

#include <backplane/sdk/core.hpp>

#include <map>
#include <string>

namespace backplane::opencl::testing {

struct TestError {
  bp_code code;
  std::string message;
  int count = 1;
};
inline TestError* test_error(const bp_error* error) {
  return reinterpret_cast<TestError*>(const_cast<bp_error*>(error));
}
inline std::map<std::string, std::string>& cache() {
  static std::map<std::string, std::string> entries;
  return entries;
}
inline std::string* bytes_of(const bp_byte_sink* sink) {
  return reinterpret_cast<std::string*>(const_cast<bp_byte_sink*>(sink));
}

inline void install_host() {
  static const bp_host_api api = [] {
    bp_host_api h = sdk::make<bp_host_api>();
    h.error_create = [](bp_host*, const bp_error_args* args) {
      return reinterpret_cast<bp_error*>(
          new TestError{args->code, std::string(sdk::view(args->message))});
    };
    h.error_retain = [](bp_host*, bp_error* e) { ++test_error(e)->count; };
    h.error_release = [](bp_host*, bp_error* e) {
      if (e != nullptr && --test_error(e)->count == 0) delete test_error(e);
    };
    h.error_code = [](bp_host*, const bp_error* e) { return test_error(e)->code; };
    h.error_message = [](bp_host*, const bp_error* e) { return sdk::raw(test_error(e)->message); };
    h.bytes_create = [](bp_host*) { return reinterpret_cast<bp_byte_sink*>(new std::string); };
    h.bytes_view = [](const bp_byte_sink* s) { return sdk::raw(*bytes_of(s)); };
    h.bytes_release = [](bp_byte_sink* s) { delete bytes_of(s); };
    h.cache_get = [](bp_host*, bp_string key, bp_byte_sink* sink) -> std::int32_t {
      const auto found = cache().find(std::string(sdk::view(key)));
      if (found == cache().end()) return 0;
      *bytes_of(sink) = found->second;
      return 1;
    };
    h.cache_put = [](bp_host*, bp_string key, const void* data, std::size_t size) {
      cache()[std::string(sdk::view(key))] = std::string(static_cast<const char*>(data), size);
    };
    return h;
  }();
  sdk::detail::g_host = &api;
}

}  // namespace backplane::opencl::testing
