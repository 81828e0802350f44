// Reading what a command is given.
#pragma once

#include <string>

#include "core/base/status.h"

namespace backplane::tools {

// The whole file; "-" is standard input.
Result<std::string> read_text(const std::string& file);

}  // namespace backplane::tools
