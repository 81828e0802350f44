// BACKPLANE_CHECK=memory: what plans and plugins do to memory, checked at every step of a call.
//
//   values      each keeps its content from the step that wrote it to its last reader
//   arenas      filled before a call; what nobody needs any more is filled again
//   bindings    a plugin sees a copy of each range between guard zones; inputs come back as they
//               were, outputs are written whole, nothing else is written
//   workspaces  the same, and filled before the plugin gets them and after it gives them back
//
// All fillings are NaN to every floating-point type, each kind another one, so that a result that
// was computed from them says of what.
#pragma once

#include <backplane/plugin.h>

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/plan/call_frame.h"

namespace backplane::runtime {

// Whether BACKPLANE_CHECK asks for it now. Graphs keep the answer from when they were compiled.
Result<bool> memory_checks();

class CheckedExecution;

// Of one frame; its members are called in the order of the steps.
class MemoryCheck {
 public:
  explicit MemoryCheck(CallFrame& frame);

  Status begin();
  Status before(std::uint32_t step);
  Status after(std::uint32_t step);
  Status end();
  // The partition of this step, in place of a plain execute. Returns when its work is over.
  Status execute(std::uint32_t step, const bp_execute_args& args);

 private:
  friend class CheckedExecution;
  enum class State : std::uint8_t { kUnwritten, kWritten, kFreed };
  struct Content {
    State state = State::kUnwritten;
    std::uint64_t hash = 0;
    std::uint32_t step = 0;  // that wrote it, or that was the last to need it
  };

  std::vector<std::uint32_t> reads(std::uint32_t step) const;
  std::vector<std::uint32_t> writes(std::uint32_t step) const;
  Status check_content(std::uint32_t slot, const std::string& reader);
  Result<std::uint64_t> hash(std::uint32_t slot) const;
  Device* device_of(std::uint32_t slot) const;
  // Who else's memory the value lies in, as the end of a sentence.
  std::string owner_text(std::uint32_t slot) const;
  // Who wrote it, and what else may have been.
  std::string writer_text(std::uint32_t slot) const;

  CallFrame& frame_;
  const CompiledGraph& graph_;
  std::vector<Content> contents_;   // by slot
  std::vector<bool> may_be_unset_;  // by value: it depends on memory that nobody set
};

}  // namespace backplane::runtime
