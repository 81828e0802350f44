// One function that takes any bytes and must survive them: libFuzzer's entry in the build of
// `./dev fuzz parsers`, a function of a name of its own in the test that runs the saved inputs.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef BACKPLANE_FUZZER
#define BACKPLANE_FUZZ_TARGET(name) \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
#else
#define BACKPLANE_FUZZ_TARGET(name) int fuzz_##name(const std::uint8_t* data, std::size_t size)
int fuzz_graph_text(const std::uint8_t* data, std::size_t size);
int fuzz_library_file(const std::uint8_t* data, std::size_t size);
int fuzz_certificate(const std::uint8_t* data, std::size_t size);
int fuzz_plugin_calls(const std::uint8_t* data, std::size_t size);
#endif
