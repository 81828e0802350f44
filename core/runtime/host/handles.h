// What a plugin holds of the host's behind an opaque pointer: the number of a place and of its
// generation, never an address. A late, second or foreign use is told and touches no memory.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace backplane::runtime {

enum class HandleKind : std::uint8_t { kError = 1, kClaimSink, kProfileSink, kByteSink, kCancel };

// Guards the table and what open handles lead to. A leaf: nothing else is locked under it, and no
// foreign code runs.
std::mutex& handle_mutex();

// A handle of one object, while it lives. Null where there is no room for one more.
class Handle {
 public:
  // `owner`: the plugin that alone may use it; empty: whoever is given it.
  Handle(HandleKind kind, void* object, std::string_view owner = {}) noexcept;
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  void close();  // with the mutex held: nobody finds the object from then on
  template <class Opaque>
  Opaque* as() const {
    return reinterpret_cast<Opaque*>(value_);
  }

 private:
  std::uintptr_t value_;
};

struct FoundHandle {
  void* object = nullptr;
  const char* fault = nullptr;  // why there is no object: "was released, or its call has ended"
};
// With the mutex held, which keeps the object. `user`: the plugin that asks; empty: not known.
FoundHandle find_handle(HandleKind kind, const void* handle, std::string_view user = {});

// The call into a plugin that this thread is in; both empty: none, or not known.
struct CurrentCall {
  std::string plugin;  // "acme"; empty where that is not known for sure
  std::string text;    // "acme:0: execute (aten.mm)"
};
void set_current_call(CurrentCall (*ask)());  // who knows it, at the start of the process
std::string calling_plugin();
// To the log, the first ones of a process: "plugin 'acme' (acme:0: execute): claim_add: TEXT". The
// same text, for an error. `plugin` may be empty.
std::string report_misuse(std::string_view plugin, std::string_view entry, std::string_view text);

}  // namespace backplane::runtime
