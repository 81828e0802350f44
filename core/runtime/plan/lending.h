// bp_lending as a plugin holds it during one execute. What is asked for or given back twice, or was
// never lent, is told and changes nothing; a use after the call too.
#pragma once

#include <backplane/plugin.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace backplane::runtime {

class Lending {
 public:
  // `inner` does the work. Both outlive the object.
  Lending(const bp_lending& inner, std::string_view plugin, std::size_t input_count,
          std::size_t output_count);
  ~Lending();  // gives back what the plugin kept
  Lending(const Lending&) = delete;
  Lending& operator=(const Lending&) = delete;

  const bp_lending* handle() const;
  // After an execute that succeeded: the first fault.
  Status finish();

 private:
  struct Place;
  struct Workspace {
    bp_range range{};
    bp_workspace_kind kind = 0;
  };
  static Place& take_place();
  static Lending* of(void* user, const char* entry);
  static bp_error* lend_output(void* user, std::uint32_t output, bp_range* out_range);
  static void input_done(void* user, std::uint32_t input);
  static bp_error* lend_workspace(void* user, std::uint64_t bytes, bp_workspace_kind kind,
                                  bp_range* out_range);
  static void workspace_done(void* user, const bp_range* range, bp_workspace_kind kind);
  std::string fault(const char* entry, std::string_view text);

  const bp_lending& inner_;
  const std::string_view plugin_;
  std::vector<bool> done_inputs_, lent_outputs_;
  std::vector<Workspace> workspaces_;  // lent now; few
  Status first_;
  Place& place_;
};

}  // namespace backplane::runtime
