// One execute of a plugin under MemoryCheck: what it is given are copies between guard zones.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "core/runtime/host/host_services.h"
#include "core/runtime/plan/guarded_range.h"
#include "core/runtime/plan/memory_check.h"

namespace backplane::runtime {

class CheckedExecution final : private SpanListener {
 public:
  CheckedExecution(MemoryCheck& check, std::uint32_t step, const bp_execute_args& args);

  Status run();

 private:
  struct Bound {
    bp_range real{};
    std::optional<GuardedRange> copy;  // none: nothing is bound, or not yet
    bool done = false;                 // the plugin has said so
  };
  struct Workspace {
    GuardedRange range;
    bool lent = false, freed = false;
  };

  Status prepare();
  Status finish();
  Status bind(const bp_range& real, bool output, Bound& out);
  Status check_guards(const GuardedRange& range, const std::string& what) const;
  Status check_input(std::size_t i) const;
  Status finish_output(std::size_t i);
  // Elements of an output that are as they were filled, or hold what the plugin must not read.
  Status check_elements(std::size_t i, std::span<const std::byte> content) const;
  Status check_copies(const GuardedRange& range, std::span<const std::byte> content) const;
  std::string value_of_output(std::size_t i) const;
  std::string value_of_input(std::size_t i) const;
  Status fault(const std::string& text) const;

  void span_begins(std::string_view name) override { spans_.emplace_back(name); }
  void span_ends() override;

  // Entries of the plugin's bp_lending; `user` is the execution.
  static bp_error* lend_output(void* user, std::uint32_t output, bp_range* out_range);
  static void input_done(void* user, std::uint32_t input);
  static bp_error* lend_workspace(void* user, std::uint64_t bytes, bp_workspace_kind kind,
                                  bp_range* out_range);
  static void workspace_done(void* user, const bp_range* range, bp_workspace_kind kind);

  MemoryCheck& check_;
  const CompiledGraph& graph_;
  std::uint32_t step_;
  const CompiledGraph::CompiledPartition& partition_;
  const bp_execute_args& args_;
  std::vector<bp_binding> in_, out_;
  std::vector<Bound> inputs_, outputs_;
  std::deque<Workspace> workspaces_;
  // Bytes of each filling that an input holds in one stretch: outputs may show elements so long.
  std::size_t in_inputs_[std::size(kFillings)] = {};
  std::vector<std::string> spans_;
  Status first_;  // what was found while the plugin ran
};

}  // namespace backplane::runtime
