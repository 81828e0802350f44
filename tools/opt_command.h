// backplane-opt: reads a graph as text, runs passes, writes it as text.
#pragma once

#include <ostream>
#include <span>
#include <string>

namespace backplane::tools {

// The exit status: 0, 1 where something failed, 2 for a wrong command line.
int opt_command(std::span<const std::string> arguments, std::ostream& out, std::ostream& error);

}  // namespace backplane::tools
