// The saved inputs of the fuzzers, and each of them cut off and with a byte changed, through the
// same functions: what was found once stays mended, without a fuzzer.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tests/parsers/fuzz_target.h"

namespace backplane {
namespace {

using Target = int (*)(const std::uint8_t*, std::size_t);
using Input = std::vector<std::uint8_t>;

Input read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<Input> inputs(const std::string& name) {
  std::vector<std::filesystem::path> paths;
  const std::string folder = BACKPLANE_TEST_SOURCE_DIR "/tests/parsers/corpus/" + name;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path());
  if (name == "library_file") paths.emplace_back(BACKPLANE_FUZZED_PLUGIN);
  std::ranges::sort(paths);
  std::vector<Input> out;
  for (const auto& path : paths) out.push_back(read(path));
  return out;
}

void run_changed(Target target, const Input& input) {
  target(input.data(), input.size());
  // At most some hundred places of long ones.
  const std::size_t stride = std::max<std::size_t>(1, input.size() / 300);
  for (std::size_t at = 0; at < input.size(); at += stride) {
    target(input.data(), at);
    Input changed = input;
    for (const std::uint8_t flip : std::array<std::uint8_t, 3>{0x01, 0x80, 0xff}) {
      changed[at] = static_cast<std::uint8_t>(input[at] ^ flip);
      target(changed.data(), changed.size());
    }
  }
}

class Parsers : public ::testing::TestWithParam<std::pair<const char*, Target>> {};

TEST_P(Parsers, SurviveWhatWasSaved) {
  const auto [name, target] = GetParam();
  const std::vector<Input> all = inputs(name);
  ASSERT_FALSE(all.empty());
  for (const Input& input : all) run_changed(target, input);
}

INSTANTIATE_TEST_SUITE_P(All, Parsers,
                         ::testing::Values(std::pair{"graph_text", &fuzz_graph_text},
                                           std::pair{"library_file", &fuzz_library_file},
                                           std::pair{"certificate", &fuzz_certificate},
                                           std::pair{"plugin_calls", &fuzz_plugin_calls}),
                         [](const auto& info) { return std::string(info.param.first); });

}  // namespace
}  // namespace backplane
