// backplane-opt: a graph through passes and the partitioner.
#include <iostream>
#include <string>
#include <vector>

#include "tools/opt_command.h"

int main(int count, char** arguments) {
  const int status = backplane::tools::opt_command(
      std::vector<std::string>(arguments + 1, arguments + count), std::cout, std::cerr);
  std::cout.flush();
  return std::cout ? status : 1;
}
