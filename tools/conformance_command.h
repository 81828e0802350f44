// The command `backplane-conformance`: cases of the conformance kit, one after the other.
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace backplane::tools {

// Ids of cases come from `ids`, one a line. On `out` a line of JSON before and one after each case;
// the exit status says whether the command itself worked.
int conformance_command(std::span<const std::string> arguments, std::istream& ids,
                        std::ostream& out, std::ostream& error);

}  // namespace backplane::tools
