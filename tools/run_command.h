// backplane-run: a graph on a plugin with random inputs.
#pragma once

#include <ostream>
#include <span>
#include <string>

namespace backplane::tools {

// The exit status: 0, 1 where something failed or differed, 2 for a wrong command line.
int run_command(std::span<const std::string> arguments, std::ostream& out, std::ostream& error);

}  // namespace backplane::tools
