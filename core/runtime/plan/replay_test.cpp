#include "core/runtime/plan/replay.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/ir/text.h"

namespace backplane::runtime {
namespace {

class ReplayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto parsed = ir::parse(
        "graph @g(%x: f32[2, 3]) -> (f32[2, 3]) {\n"
        "  %a = aten.relu(%x) : f32[2, 3]\n  %b = aten.neg(%a) : f32[2, 3]\n  return %b\n}");
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    graph_ = std::move(*parsed);
    folder_ = std::filesystem::temp_directory_path() / ("replay-" + std::to_string(::getpid()));
  }
  void TearDown() override {
    ::unsetenv("BACKPLANE_REPLAY");
    std::filesystem::remove_all(folder_);
  }
  std::string keep() {
    const std::vector<ir::NodeId> nodes = {1};
    const std::vector<ir::ValueId> inputs = {graph_.nodes[0].results[0]},
                                   outputs = {graph_.nodes[1].results[0]};
    return keep_for_replay({graph_, nodes, inputs, outputs, {}, "acme:0", "it broke\nin two"});
  }

  ir::Graph graph_;
  std::filesystem::path folder_;
};

TEST_F(ReplayTest, NothingIsWrittenUnlessAsked) { EXPECT_EQ(keep(), ""); }

TEST_F(ReplayTest, TheFileSaysWhatFailedAndParses) {
  ::setenv("BACKPLANE_REPLAY", folder_.c_str(), 1);
  const std::string said = keep();
  EXPECT_TRUE(said.starts_with("; again: backplane replay ")) << said;
  EXPECT_EQ(keep(), said);  // the same partition, the same file
  const std::filesystem::path path = said.substr(said.rfind(' ') + 1);
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str().starts_with("// acme:0: it broke in two\n")) << text.str();
  auto part = ir::parse(text.str());
  ASSERT_TRUE(part.ok()) << part.status().message();
  EXPECT_EQ(part->nodes.size(), 1U);
}

TEST_F(ReplayTest, AFolderThatCannotBeWrittenIsSaid) {
  std::ofstream(folder_) << "a file";
  ::setenv("BACKPLANE_REPLAY", folder_.c_str(), 1);
  EXPECT_NE(keep().find("cannot be written"), std::string::npos);
}

}  // namespace
}  // namespace backplane::runtime
