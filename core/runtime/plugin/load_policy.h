// Which libraries may be loaded: what the system and the user ask for, and whether one has it.
//
// Files are read from /etc/backplane and, unless the process is privileged, from
// $XDG_CONFIG_HOME/backplane (~/.config/backplane); a line each, '#' begins a comment.
//   policy        off | allow-list | signed | signed+allow-list; all that any of them asks for
//   holds allowed       SHA256 of libraries denied        SHA256 REASON, under every policy
//   trusted_keys/*.pub   KEY NAME; KEY is a base64 Ed25519 public key
// $BACKPLANE_LOAD_POLICY adds to the policy, $BACKPLANE_SAFE_MODE=1 loads nothing.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/host/signature.h"

namespace backplane::runtime {

struct LoadPolicy {
  bool loads_nothing = false, wants_allowed = false, wants_signature = false;
  std::set<std::string> allowed;
  std::map<std::string, std::string> denied;  // with the reason
  std::map<PublicKey, std::string> keys;      // with their names

  // Whether a library's hash decides about its loading, so that nothing else may be loaded for it.
  bool asks_for_hashes() const { return wants_allowed || wants_signature || !denied.empty(); }
  // "off", "allow-list", "signed", "signed+allow-list" or "safe mode".
  std::string text() const;
};

// As it is now. An error names file and line: nothing is loaded by a policy that cannot be read.
Result<LoadPolicy> read_load_policy();

// What a certificate says that is good for a library of that content today (YYYY-MM-DD).
struct Certificate {
  int level = -1;
  std::string signer, end;
};
Result<Certificate> read_certificate(const std::string& path, std::string_view sha256,
                                     const LoadPolicy& policy, std::string_view today);

// The message completes "PLUGIN was refused: ".
Status check_load(const LoadPolicy& policy, const std::string& library, std::string_view sha256,
                  std::string_view today);

std::string today();  // UTC

}  // namespace backplane::runtime
