// The services of a host, for a plugin's tests in a process that has none.
#pragma once

#include <backplane/plugin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace backplane::sdk::testing {

// What stands behind each bp_error of this host.
struct HostError {
  bp_code code;
  std::string message;
  std::vector<std::uint32_t> node_ids{};
  int count = 1;
};
inline HostError* host_error(bp_error* e) { return reinterpret_cast<HostError*>(e); }
inline const HostError* host_error(const bp_error* e) {
  return reinterpret_cast<const HostError*>(e);
}
// How many errors and byte sinks are alive: plugins release what they own.
inline std::int64_t& live_errors() {
  static std::int64_t count = 0;
  return count;
}
inline std::int64_t& live_bytes() {
  static std::int64_t count = 0;
  return count;
}
// What plugins keep between processes, by key.
inline std::map<std::string, std::string>& host_cache() {
  static std::map<std::string, std::string> entries;
  return entries;
}
inline std::string* host_bytes(const bp_byte_sink* sink) {
  return reinterpret_cast<std::string*>(const_cast<bp_byte_sink*>(sink));
}

// What a plugin says of the nodes of a graph, by id.
struct ClaimAnswer {
  std::vector<std::uint32_t> claimed;
  std::vector<std::string> refused;
};

inline const bp_host_api& host_api() {
  static const bp_host_api api = [] {
    bp_host_api h{};
    h.struct_size = sizeof h;
    h.version = BP_ABI_VERSION;
    h.error_create = [](bp_host*, const bp_error_args* a) {
      __atomic_add_fetch(&live_errors(), 1, 5);
      return reinterpret_cast<bp_error*>(
          new HostError{a->code,
                        std::string(a->message.data, a->message.size),
                        {a->node_ids, a->node_ids + a->node_count}});
    };
    h.error_retain = [](bp_host*, bp_error* e) { __atomic_add_fetch(&host_error(e)->count, 1, 5); };
    h.error_release = [](bp_host*, bp_error* e) {
      if (e && __atomic_sub_fetch(&host_error(e)->count, 1, 5) == 0) {
        __atomic_sub_fetch(&live_errors(), 1, 5);
        delete host_error(e);
      }
    };
    h.error_code = [](bp_host*, const bp_error* e) -> bp_code {
      return e ? host_error(e)->code : bp_code{BP_OK};
    };
    h.error_message = [](bp_host*, const bp_error* e) {
      const std::string& m = host_error(e)->message;
      return bp_string{m.data(), m.size()};
    };
    h.log = [](bp_host*, std::uint32_t, bp_string) {};
    h.thread_count = [](bp_host*) { return std::uint32_t{1}; };
    h.parallel_for = [](bp_host*, std::size_t n, std::size_t, void* user,
                        bp_error* (*body)(void*, std::size_t, std::size_t)) {
      return body(user, 0, n);
    };
    h.clock_ns = [](bp_host*) {
      return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                        std::chrono::nanoseconds(1));
    };
    h.span_begin = [](bp_host*, bp_string) { return std::uint64_t{0}; };
    h.span_end = [](bp_host*, std::uint64_t) {};
    h.profile_add = [](bp_profile_sink*, const bp_profile_range*) {};
    h.is_cancelled = [](const bp_cancel*) { return std::int32_t{0}; };
    h.claim_add = [](bp_claim_sink* s, const bp_claim* c) -> bp_error* {
      auto& out = *reinterpret_cast<ClaimAnswer*>(s);
      out.claimed.insert(out.claimed.end(), c->node_ids, c->node_ids + c->node_count);
      return nullptr;
    };
    h.refuse_add = [](bp_claim_sink* s, std::uint32_t, bp_refusal, bp_string text) -> bp_error* {
      reinterpret_cast<ClaimAnswer*>(s)->refused.emplace_back(text.data, text.size);
      return nullptr;
    };
    h.bytes_write = [](bp_byte_sink* s, const void* data, std::size_t n) -> bp_error* {
      host_bytes(s)->append(static_cast<const char*>(data), n);
      return nullptr;
    };
    h.bytes_create = [](bp_host*) {
      __atomic_add_fetch(&live_bytes(), 1, 5);
      return reinterpret_cast<bp_byte_sink*>(new std::string);
    };
    h.bytes_view = [](const bp_byte_sink* s) {
      return bp_string{host_bytes(s)->data(), host_bytes(s)->size()};
    };
    h.bytes_release = [](bp_byte_sink* s) {
      if (s != nullptr) __atomic_sub_fetch(&live_bytes(), 1, 5);
      delete host_bytes(s);
    };
    h.cache_get = [](bp_host*, bp_string key, bp_byte_sink* sink) -> std::int32_t {
      const auto found = host_cache().find(std::string(key.data, key.size));
      if (found == host_cache().end()) return 0;
      *host_bytes(sink) = found->second;
      return 1;
    };
    h.cache_put = [](bp_host*, bp_string key, const void* data, std::size_t size) {
      host_cache()[std::string(key.data, key.size)] =
          std::string(static_cast<const char*>(data), size);
    };
    return h;
  }();
  return api;
}

}  // namespace backplane::sdk::testing
