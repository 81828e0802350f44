// For tests: C programs compiled by the host's compiler and run.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace backplane::kernelgen {

// What the program in the file `name` prints; an error's text where it does not compile. `headers`
// are found by their names.
inline std::string run_program(const std::string& compiler, const std::string& name,
                               const std::string& source,
                               const std::map<std::string, std::string>& headers = {}) {
  static int count = 0;
  const auto folder = std::filesystem::temp_directory_path() /
                      ("kernelgen-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / name) << source;
  for (const auto& [header, text] : headers) std::ofstream(folder / header) << text;
  const std::string base = folder.string();
  const std::string command = compiler + " -I" + base + " -o " + base + "/k " + base + "/" + name +
                              " -lm 2>&1 && " + base + "/k";
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

inline std::string run_c(const std::string& source,
                         const std::string& flags = "-ffp-contract=off") {
  return run_program("cc -std=c11 -D_GNU_SOURCE -O1 " + flags, "k.c", source);
}

inline std::vector<double> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<double> out;
  for (double v = 0; in >> v;) out.push_back(v);
  return out;
}

}  // namespace backplane::kernelgen
