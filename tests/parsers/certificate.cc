// Any text beside a library is no certificate of a key that is trusted.
#include <cstdlib>
#include <string>

#include "core/runtime/plugin/load_policy.h"
#include "tests/parsers/fuzz_target.h"
#include "tests/parsers/memory_file.h"

BACKPLANE_FUZZ_TARGET(certificate) {
  using namespace backplane::runtime;  // NOLINT(google-build-using-namespace)
  static const LoadPolicy policy = [] {
    LoadPolicy made;
    made.wants_signature = true;
    // That of the saved example, so that its texts come as far as the signature.
    const auto bytes = decode_base64("oG+zDhzUQ8UFvZigYy4oWLc4QMHqGjAJsNNJeNm/uI0=");
    PublicKey key{};
    if (!bytes || bytes->size() != key.size()) std::abort();
    for (std::size_t i = 0; i < key.size(); ++i) key[i] = (*bytes)[i];
    made.keys[key] = "fuzzed";
    return made;
  }();
  const backplane::parsers::MemoryFile file(data, size);
  if (read_certificate(file.path(), std::string(64, 'a'), policy, "2026-01-01").ok()) std::abort();
  return 0;
}
