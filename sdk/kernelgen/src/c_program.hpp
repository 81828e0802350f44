// For tests: C programs compiled by the host's compiler and run.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace backplane::kernelgen {

// What the program prints; an error's text where it does not compile.
inline std::string run_c(const std::string& source,
                         const std::string& flags = "-ffp-contract=off") {
  static int count = 0;
  const auto folder = std::filesystem::temp_directory_path() /
                      ("kernelgen-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "k.c") << source;
  const std::string base = folder.string();
  const std::string command = "cc -std=c11 -D_GNU_SOURCE -O1 " + flags + " -o " + base + "/k " +
                              base + "/k.c -lm 2>&1 && " + base + "/k";
  std::string out;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    std::array<char, 4096> buffer;
    for (std::size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
      out.append(buffer.data(), n);
    pclose(pipe);
  }
  std::filesystem::remove_all(folder);
  return out;
}

inline std::vector<double> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<double> out;
  for (double v = 0; in >> v;) out.push_back(v);
  return out;
}

}  // namespace backplane::kernelgen
