// Runs tests/golden/tools/*.bpir: the first line is "// RUN: <command and options>", then a graph,
// then "// -----" and what the command prints. "..." at the end of a line stands for anything.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tools/opt_command.h"
#include "tools/run_command.h"

namespace backplane::tools {
namespace {

std::string read(const std::filesystem::path& path) {
  std::stringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

struct Answer {
  int status = 0;
  std::string out, error;
};
Answer run(const std::string& line, const std::string& graph) {
  const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                     ("backplane_golden_" + std::to_string(::getpid()) + ".bpir");
  std::ofstream(file) << graph;
  std::stringstream words(line);
  std::string command, word;
  words >> command;
  std::vector<std::string> arguments{file.string(), "--plugin-path", BACKPLANE_TEST_PLUGIN_DIR};
  while (words >> word) arguments.push_back(word);
  std::stringstream out, error;
  Answer answer;
  if (command == "backplane-run")
    answer.status = run_command(arguments, out, error);
  else if (command == "backplane-opt")
    answer.status = opt_command(arguments, out, error);
  else
    answer.error = "no command " + command;
  std::filesystem::remove(file);
  answer.out = out.str();
  std::string text = answer.error + error.str();
  for (std::size_t at; (at = text.find(file.string())) != std::string::npos;)
    text.replace(at, file.string().size(), "FILE");
  answer.error = text;
  return answer;
}

// `text` with the ends of lines cut where `pattern` has "...".
std::string fit(const std::string& text, const std::string& pattern) {
  std::stringstream lines(text), patterns(pattern);
  std::string out;
  for (std::string line, expected; std::getline(lines, line); out += line + "\n") {
    if (!std::getline(patterns, expected)) expected.clear();
    const std::size_t dots = expected.find("...");
    if (dots != std::string::npos && dots + 3 == expected.size() && line.size() >= dots)
      line = line.substr(0, dots) + "...";
  }
  return out;
}

TEST(Golden, Files) {
  std::vector<std::filesystem::path> files;
  const auto folder =
      std::filesystem::path(BACKPLANE_TEST_SOURCE_DIR) / "tests" / "golden" / "tools";
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".bpir") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  EXPECT_FALSE(files.empty());
  for (const auto& file : files) {
    SCOPED_TRACE(file.filename().string());
    const std::string text = read(file), head = "// RUN: ", split = "\n// -----\n";
    const std::size_t line_end = text.find('\n'), middle = text.find(split);
    ASSERT_TRUE(text.starts_with(head) && middle != std::string::npos);
    const Answer answer = run(text.substr(head.size(), line_end - head.size()),
                              text.substr(line_end + 1, middle - line_end));
    const std::string expected = text.substr(middle + split.size());
    EXPECT_EQ(fit(answer.out + answer.error, expected), expected);
    EXPECT_EQ(answer.status, answer.error.empty() ? 0 : 1);
  }
}

constexpr const char* kGraph = R"(
graph @g(%x: f32[s0, 4], %y: i64[s0]) -> (f32[s0, 4]) classes(s0: 3 [2, 8]) {
  %0 = aten.relu(%x) : f32[s0, 4]
  return %0
}
)";

TEST(RunCommand, WrongCommandLines) {
  EXPECT_EQ(run("backplane-run --nonsense", kGraph).status, 2);
  EXPECT_EQ(run("backplane-run --seed", kGraph).status, 2);
  EXPECT_EQ(run("backplane-run --repeat 0", kGraph).status, 2);
  EXPECT_EQ(run("backplane-run second_file", kGraph).status, 2);
  EXPECT_EQ(run("backplane-run --plugin nobody", kGraph).status, 1);
  EXPECT_EQ(run("backplane-run --plugin reference:x", kGraph).status, 1);
  EXPECT_EQ(run("backplane-run --plugin reference:9", kGraph).status, 1);
  EXPECT_NE(run("backplane-run --sizes s0=9", kGraph).error.find("outside [2, 8]"),
            std::string::npos);
  EXPECT_NE(run("backplane-run --sizes s7=4", kGraph).error.find("no dim class s7"),
            std::string::npos);
  EXPECT_EQ(run("backplane-run --sizes s0", kGraph).status, 1);
  EXPECT_EQ(run("backplane-opt --pipeline=partition", kGraph).status, 1);
  EXPECT_EQ(run("backplane-opt --verify-only=1", kGraph).status, 2);
}

TEST(RunCommand, TimesAndCompares) {
  const Answer answer =
      run("backplane-run --repeat 3 --compare=reference_minimal --sizes s0=5", kGraph);
  EXPECT_EQ(answer.status, 0) << answer.error;
  EXPECT_NE(answer.out.find("f32[5, 4]"), std::string::npos);
  EXPECT_NE(answer.out.find("time: 3 calls, best "), std::string::npos);
  EXPECT_NE(answer.out.find("compare 0: max absolute error 0, relative 0\n"), std::string::npos);
}

TEST(RunCommand, SeedsDiffer) {
  EXPECT_EQ(run("backplane-run --seed 7", kGraph).out, run("backplane-run --seed 7", kGraph).out);
  EXPECT_NE(run("backplane-run --seed 7", kGraph).out, run("backplane-run --seed 8", kGraph).out);
}

}  // namespace
}  // namespace backplane::tools
