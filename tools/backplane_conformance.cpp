#include <unistd.h>

#include <ext/stdio_filebuf.h>
#include <iostream>
#include <vector>

#include "tools/conformance_command.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  // What a plugin prints must not stand between our lines.
  __gnu_cxx::stdio_filebuf<char> lines(::dup(STDOUT_FILENO), std::ios::out);
  std::ostream out(&lines);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  const int status = backplane::tools::conformance_command(arguments, std::cin, out, std::cerr);
  out.flush();
  // Threads and destructors of plugins are not part of the cases.
  ::_exit(status);
}
