// The saved inputs of the fuzzers, and each of them cut off and with a byte changed, through the
// same functions: what was found once stays mended, without a fuzzer.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
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

// One to eight edits: a byte, a number of its own, a part that is gone, or one of another input.
Input edited(Input input, const std::vector<Input>& all, std::mt19937& random) {
  const auto below = [&](std::size_t end) { return end == 0 ? 0 : random() % end; };
  for (std::size_t edits = 1 + below(8); edits > 0; --edits) {
    const auto at = input.begin() + static_cast<std::ptrdiff_t>(below(input.size() + 1));
    const auto left = static_cast<std::size_t>(input.end() - at);
    switch (below(4)) {
      case 0:
        if (left > 0) *at = static_cast<std::uint8_t>(random());
        break;
      case 1: {
        constexpr std::array<std::uint64_t, 6> kNumbers{0,          1,          0x7fffffff,
                                                        0xffffffff, 1ULL << 63, ~0ULL};
        const std::uint64_t number = kNumbers[below(kNumbers.size())];
        const std::size_t size = std::min(left, sizeof number);
        if (size > 0) std::memcpy(&*at, &number, size);
        break;
      }
      case 2:
        input.erase(at, at + static_cast<std::ptrdiff_t>(below(std::min<std::size_t>(left, 64))));
        break;
      default: {
        const Input& other = all[below(all.size())];
        const std::size_t start = below(other.size()), size = below(other.size() - start);
        const auto first = other.begin() + static_cast<std::ptrdiff_t>(start);
        input.insert(at, first,
                     first + static_cast<std::ptrdiff_t>(std::min<std::size_t>(size, 256)));
      }
    }
  }
  return input;
}

class Parsers : public ::testing::TestWithParam<std::pair<const char*, Target>> {};

TEST_P(Parsers, SurviveWhatWasSaved) {
  const auto [name, target] = GetParam();
  const std::vector<Input> all = inputs(name);
  ASSERT_FALSE(all.empty());
  for (const Input& input : all) run_changed(target, input);
}

// Other inputs with BACKPLANE_FUZZ_SEED; a failure names the seed and the round.
TEST_P(Parsers, SurviveRandomEdits) {
  const auto [name, target] = GetParam();
  std::vector<Input> all = inputs(name);
  constexpr std::size_t kMost = 1 << 20;  // a whole library takes too long for each of thousands
  std::erase_if(all, [](const Input& input) { return input.size() > kMost; });
  ASSERT_FALSE(all.empty());
  const char* given = std::getenv("BACKPLANE_FUZZ_SEED");
  const auto seed = static_cast<std::uint32_t>(given ? std::strtoul(given, nullptr, 10) : 1);
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    const Input input = edited(all[random() % all.size()], all, random);
    target(input.data(), input.size());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Parsers,
                         ::testing::Values(std::pair{"graph_text", &fuzz_graph_text},
                                           std::pair{"library_file", &fuzz_library_file},
                                           std::pair{"certificate", &fuzz_certificate},
                                           std::pair{"plugin_calls", &fuzz_plugin_calls}),
                         [](const auto& info) { return std::string(info.param.first); });

}  // namespace
}  // namespace backplane
