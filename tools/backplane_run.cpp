// backplane-run: runs a graph on a plugin and compares it with another.
#include <iostream>
#include <string>
#include <vector>

#include "core/runtime/plugin/registry.h"
#include "tools/run_command.h"

int main(int count, char** arguments) {
  const int status = backplane::tools::run_command(
      std::vector<std::string>(arguments + 1, arguments + count), std::cout, std::cerr);
  std::cout.flush();
  backplane::runtime::Registry::instance().shutdown();
  return std::cout ? status : 1;
}
