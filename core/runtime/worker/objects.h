// The plugin's objects on the wire: numbers to the parent, which are pointers here.
#pragma once

#include <backplane/plugin.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "core/runtime/host/error.h"
#include "core/runtime/isolate/wire.h"
#include "core/runtime/plugin/live_handles.h"

namespace backplane::runtime {

// Of the plugin, out of a question.
template <class Object>
Object* object(WireReader& in) {
  return reinterpret_cast<Object*>(in.get<std::uint64_t>());
}
// What the plugin has made: each once, which the parent cannot see.
template <class Object>
LiveHandles& live() {
  static auto* const handles = new LiveHandles;
  return *handles;
}
template <class Object>
bp_error* put_object(WireWriter& out, Object* made, std::string_view entry) {
  if (made != nullptr && !live<Object>().add(made))
    return make_error(BP_INTERNAL, in_use_text("it", "what " + std::string(entry) + " makes"));
  out.put(reinterpret_cast<std::uint64_t>(made));
  return nullptr;
}
// Of an object that the plugin is asked to release.
template <class Object>
Object* last_use(WireReader& in) {
  auto* const found = object<Object>(in);
  live<Object>().remove(found);
  return found;
}

}  // namespace backplane::runtime
