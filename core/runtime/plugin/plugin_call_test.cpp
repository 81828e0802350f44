#include "core/runtime/plugin/plugin_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/runtime/testing/files.h"
#include "core/runtime/testing/run_graph.h"

namespace backplane::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_files::testing_plugin;

constexpr const char* kText = R"(
graph @thrown(%x: f32[3]) -> (f32[3]) {
  %0 = aten.neg(%x) : f32[3]
  %1 = aten.relu(%0) : f32[3]
  return %1
}
)";

class Throws {
 public:
  explicit Throws(const std::string& entry) { ::setenv("BACKPLANE_SABOTAGE", entry.c_str(), 1); }
  ~Throws() { ::unsetenv("BACKPLANE_SABOTAGE"); }
  Throws(const Throws&) = delete;
  Throws& operator=(const Throws&) = delete;
};

// From loading to the call of a graph: the first error.
std::string run_all(const std::string& entry) {
  const Throws throws(entry);
  auto plugin = Plugin::load(testing_plugin("sabotage"));
  if (!plugin.ok()) return plugin.status().message();
  const auto device = (*plugin)->device(0);
  if (!device.ok()) return device.status().message();
  {
    auto compiled = testing_graph::compile(kText, {*device});
    if (!compiled.ok()) return compiled.status().message();
    if (!(*compiled)->refusals().empty()) return (*compiled)->refusals()[0].text;
    testing_graph::Inputs inputs = testing_graph::Inputs::random((*compiled)->graph());
    const auto out = testing_graph::call(**compiled, inputs);
    if (!out.ok()) return out.status().message();
  }
  return "";
}

TEST(PluginCall, EachEntryThatThrowsIsNamed) {
  struct Case {
    const char* entry;
    const char* named;
  };
  for (const Case& c : {Case{"device_describe", "sabotage:0: device_describe"},
                        Case{"device_open", "sabotage:0: device_open"},
                        Case{"buffer_create", "sabotage:0: buffer_create"},
                        Case{"copy", "sabotage:0: copy of 12 bytes"},
                        Case{"claims", "plugin 'sabotage': claims of a graph of 2 nodes"},
                        Case{"compile", "plugin 'sabotage' (sabotage:0): compile"},
                        Case{"executable_describe", "(sabotage:0): executable_describe"},
                        Case{"execute", "plugin 'sabotage' (sabotage:0): execute"}}) {
    EXPECT_THAT(run_all(std::string(c.entry) + " throw"),
                AllOf(HasSubstr(c.named),
                      HasSubstr("threw an exception (the vendor's code gave up); no exception may "
                                "cross the plugin's boundary")))
        << c.entry;
  }
  EXPECT_EQ(run_all("nothing"), "");
}

TEST(PluginCall, AnExecuteThatThrowsNamesTheNodes) {
  EXPECT_THAT(run_all("execute throw"),
              AllOf(HasSubstr("of thrown on sabotage:0: nodes 0 aten.neg, 1 "
                              "aten.relu")));
  EXPECT_THAT(run_all("execute throw42"), HasSubstr("threw an exception of unknown type"));
}

TEST(PluginCall, AnswersThatAreNoneAreNamed) {
  EXPECT_THAT(run_all("executable_describe small"),
              HasSubstr("executable_describe answered struct_size 8, expected "));
  EXPECT_THAT(run_all("executable_describe lends"),
              HasSubstr("executable_describe says LENDING without SYNCHRONOUS"));
  EXPECT_THAT(run_all("device_describe binary"),
              HasSubstr("device_describe answered name '?? device', expected UTF-8"));
  EXPECT_THAT(run_all("execute long"), HasSubstr("short... (a text of 1099511627776 bytes)"));
}

TEST(PluginCall, EntriesThatCannotFailAreLogged) {
  for (const char* entry : {"device_close", "buffer_release", "executable_release", "shutdown"}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(run_all(std::string(entry) + " throw"), "") << entry;
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr("sabotage"), HasSubstr(entry), HasSubstr("threw an exception")));
  }
}

TEST(PluginCall, APluginThatCannotCountHasNoDevices) {
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(run_all("device_count throw"), HasSubstr("Plugin 'sabotage' has 0 devices"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("device_count"));
}

}  // namespace
}  // namespace backplane::runtime
