// Runs tests/golden/*.bpir: the first line is "// RUN: <pipeline>", then a graph, then "// -----"
// and the graph that the pipeline makes of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/passes/test_support.h"

#ifndef BACKPLANE_TEST_SOURCE_DIR
#define BACKPLANE_TEST_SOURCE_DIR "."
#endif

namespace backplane::passes {
namespace {

TEST(Golden, Files) {
  std::vector<std::filesystem::path> files;
  const std::filesystem::path folder =
      std::filesystem::path(BACKPLANE_TEST_SOURCE_DIR) / "tests" / "golden";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".bpir") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  EXPECT_FALSE(files.empty());
  for (const auto& file : files) {
    SCOPED_TRACE(file.filename().string());
    std::stringstream content;
    content << std::ifstream(file).rdbuf();
    const std::string text = content.str();
    const std::string run = "// RUN: ", split = "\n// -----\n";
    const std::size_t line_end = text.find('\n');
    const std::size_t middle = text.find(split);
    ASSERT_TRUE(text.starts_with(run) && middle != std::string::npos);
    const std::string pipeline = text.substr(run.size(), line_end - run.size());
    const std::string before = text.substr(line_end + 1, middle - line_end);
    const std::string expected = text.substr(middle + split.size());
    EXPECT_EQ(run_text(pipeline, before), expected);
    EXPECT_EQ(run_text(pipeline, expected), expected) << "a second run changes more";
  }
}

}  // namespace
}  // namespace backplane::passes
