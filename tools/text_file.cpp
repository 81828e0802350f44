#include "tools/text_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace backplane::tools {

// stdio: reading a folder through a C++ stream throws.
Result<std::string> read_text(const std::string& file) {
  std::FILE* stream = file == "-" ? stdin : std::fopen(file.c_str(), "rb");
  if (stream == nullptr) {
    return Status(Code::kNotFound, "Cannot open \"" + file + "\": " + std::strerror(errno) + ".");
  }
  std::string text;
  char buffer[1 << 16];
  for (std::size_t count; (count = std::fread(buffer, 1, sizeof buffer, stream)) > 0;) {
    text.append(buffer, count);
  }
  const int error = std::ferror(stream) != 0 ? errno : 0;
  if (stream != stdin) std::fclose(stream);
  if (error != 0) {
    return Status(Code::kNotFound, "Cannot read \"" + file + "\": " + std::strerror(error) + ".");
  }
  return text;
}

}  // namespace backplane::tools
