// backplane-worker PLUGIN BYTES: holds one plugin for a program that wants it in a process of its
// own (core/runtime/isolate). Started by that program alone, with the two descriptors it inherits.
#include <charconv>
#include <cstdio>
#include <string_view>

#include "core/runtime/isolate/worker_process.h"
#include "core/runtime/worker/server.h"

int main(int count, char** arguments) {
  using namespace backplane;  // NOLINT(google-build-using-namespace)
  std::uint64_t bytes = 0;
  const std::string_view digits = count == 3 ? arguments[2] : "";
  std::from_chars(digits.data(), digits.data() + digits.size(), bytes);
  if (bytes == 0) {
    const bool is_help = count == 2 && std::string_view(arguments[1]) == "--help";
    std::fputs("backplane-worker: it is started by the program whose plugin it holds\n",
               is_help ? stdout : stderr);
    return is_help ? 0 : 2;
  }
  Result<runtime::SharedMapping> memory =
      runtime::SharedMapping::map(runtime::kWorkerMemory, bytes);
  if (!memory.ok()) {
    std::fprintf(stderr, "backplane-worker: %s\n", memory.status().message().c_str());
    return 2;
  }
  runtime::serve_plugin(arguments[1], std::move(*memory),
                        runtime::Channel(runtime::kWorkerControl));
}
