// A plugin that does harm in each of its entries, in each way, in a process of its own: what the
// user sees then, and at the next start.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/runtime/testing/files.h"

extern "C" char** environ;

namespace backplane::tools {
namespace {

using runtime::testing_files::read_file;
using runtime::testing_files::TempFolder;
using runtime::testing_files::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kGraph = R"(
graph @thrown(%x: f32[3]) -> (f32[3]) {
  %0 = aten.neg(%x) : f32[3]
  %1 = aten.relu(%0) : f32[3]
  return %1
}
)";

struct Ended {
  int signal = 0, code = -1;
  std::string said;
};

class Sabotage : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  // The command on the graph, with the variables set.
  Ended run(const std::map<std::string, std::string>& variables) {
    write_file(folder_.file("graph.bpir"), kGraph);
    std::map<std::string, std::string> all{{"BACKPLANE_STATE_DIR", folder_.file("state")},
                                           {"BACKPLANE_CACHE", "0"}};
    all.insert(variables.begin(), variables.end());
    std::vector<std::string> texts;
    for (char** entry = environ; *entry != nullptr; ++entry)
      if (!std::string_view(*entry).starts_with("BACKPLANE_")) texts.emplace_back(*entry);
    for (const auto& [name, value] : all) texts.emplace_back(name).append("=").append(value);
    std::vector<char*> environment;
    for (std::string& text : texts) environment.push_back(text.data());
    environment.push_back(nullptr);
    std::vector<std::string> words{
        BACKPLANE_RUN_COMMAND, folder_.file("graph.bpir"),   "--plugin", "sabotage",
        "--plugin-path",       BACKPLANE_TESTING_PLUGINS_DIR};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    const std::string said = folder_.file("said");
    ::posix_spawn_file_actions_addopen(&actions, 1, said.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                       0600);
    ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t child = 0;
    EXPECT_EQ(::posix_spawn(&child, words[0].c_str(), &actions, nullptr, arguments.data(),
                            environment.data()),
              0);
    ::posix_spawn_file_actions_destroy(&actions);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    Ended out;
    if (WIFSIGNALED(status)) out.signal = WTERMSIG(status);
    if (WIFEXITED(status)) out.code = WEXITSTATUS(status);
    out.said = read_file(said);
    return out;
  }
  Ended run_harmed(std::map<std::string, std::string> variables = {}) {
    variables["BACKPLANE_SABOTAGE"] = entry() + " " + action();
    return run(variables);
  }
  static std::string entry() { return std::get<0>(GetParam()); }
  static std::string action() { return std::get<1>(GetParam()); }

 private:
  TempFolder folder_;
};

constexpr std::array kEntries{
    "load",           "negotiate",           "device_count", "device_describe",
    "device_open",    "buffer_create",       "copy",         "claims",
    "compile",        "executable_describe", "execute",      "executable_release",
    "buffer_release", "device_close",        "shutdown"};
const auto kEach = ::testing::ValuesIn(kEntries);
constexpr auto kName = [](const auto& info) {
  return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
};

int signal_of(std::string_view action) {
  if (action == "bus") return SIGBUS;
  if (action == "ill") return SIGILL;
  if (action == "fpe") return SIGFPE;
  for (const std::string_view by_abort :
       {"abort", "thread_abort", "thread_throw", "at_exit", "what", "leave"})
    if (action == by_abort) return SIGABRT;
  return SIGSEGV;  // overflow and thread too
}

class Crash : public Sabotage {};

TEST_P(Crash, IsToldAtOnceAndAtTheNextStartAndThePluginIsLeftOut) {
  // Whose code a thread runs is known from the end of the load on.
  if (entry() == "load" && action() == "thread") return;
  const int signal = signal_of(action());
  const std::string name = std::string("SIG") + ::sigabbrev_np(signal);
  const Ended harmed = run_harmed();
  EXPECT_EQ(harmed.signal, signal) << harmed.said;
  const std::string place = action().starts_with("thread") ? "a thread of its own"
                            : action() == "at_exit"        ? "outside of a call"
                                                           : entry();
  EXPECT_THAT(harmed.said, HasSubstr("backplane: " + name + " inside of plugin sabotage"));
  EXPECT_THAT(harmed.said, HasSubstr(": " + place));

  const Ended next = run({});
  EXPECT_EQ(next.code, 1) << next.said;
  EXPECT_THAT(next.said, AllOf(HasSubstr("ended by " + name + " inside of sabotage"),
                               HasSubstr("plugin 'sabotage' is left out until"),
                               HasSubstr("was refused: process "),
                               HasSubstr("backplane doctor --release sabotage")));
  const Ended later = run({});
  EXPECT_EQ(later.code, 1) << later.said;
  EXPECT_THAT(later.said, AllOf(Not(HasSubstr("is left out until")), HasSubstr("was refused")));
  EXPECT_EQ(run({{"BACKPLANE_QUARANTINE", "off"}}).code, 0);
}
INSTANTIATE_TEST_SUITE_P(All, Crash,
                         ::testing::Combine(kEach,
                                            ::testing::Values("segv", "bus", "ill", "fpe", "abort",
                                                              "overflow", "thread")),
                         kName);

// Code of a library is known from the end of its load on.
constexpr std::array kLateEntries{"device_open", "claims",         "compile",
                                  "execute",     "buffer_release", "shutdown"};
INSTANTIATE_TEST_SUITE_P(Late, Crash,
                         ::testing::Combine(::testing::ValuesIn(kLateEntries),
                                            ::testing::Values("thread_abort", "thread_throw",
                                                              "at_exit", "what", "leave")),
                         kName);

class Exit : public Sabotage {};

TEST_P(Exit, IsToldAtTheNextStart) {
  EXPECT_EQ(run_harmed().code, 7);
  EXPECT_THAT(run({}).said,
              AllOf(HasSubstr("ended by exit() inside of sabotage"), HasSubstr("was refused")));
}
INSTANTIATE_TEST_SUITE_P(All, Exit, ::testing::Combine(kEach, ::testing::Values("exit")), kName);

// Nothing tells it from a process that somebody killed: it is no reason to leave a plugin out.
class SilentExit : public Sabotage {};

TEST_P(SilentExit, LeavesThePluginIn) {
  EXPECT_EQ(run_harmed().code, 7);
  EXPECT_EQ(run({}).code, 0);
}
INSTANTIATE_TEST_SUITE_P(All, SilentExit, ::testing::Combine(kEach, ::testing::Values("_exit")),
                         [](const auto& info) { return std::string(std::get<0>(info.param)); });

class LongCall : public Sabotage {};

TEST_P(LongCall, IsTold) {
  const Ended harmed = run_harmed({{"BACKPLANE_PATIENCE", "0.1"}});
  EXPECT_EQ(harmed.code, 0) << harmed.said;
  EXPECT_THAT(harmed.said, HasSubstr("still waiting for sabotage"));
  EXPECT_THAT(harmed.said, HasSubstr(": " + entry()));
  EXPECT_THAT(run({{"BACKPLANE_PATIENCE", "0"}}).said, Not(HasSubstr("still waiting")));
}
INSTANTIATE_TEST_SUITE_P(All, LongCall, ::testing::Combine(kEach, ::testing::Values("nap")), kName);

// Whose numbers alone are wrong, which check mode is for; and a device without a name, which works.
bool is_no_error(std::string_view entry, std::string_view action) {
  return action == "null" && (entry == "copy" || entry == "execute" || entry == "device_describe");
}

class Fault : public Sabotage {
 protected:
  void expect_error(const std::map<std::string, std::string>& variables);
};

void Fault::expect_error(const std::map<std::string, std::string>& variables) {
  const Ended harmed = run_harmed(variables);
  EXPECT_EQ(harmed.signal, 0) << harmed.said;
  if (is_no_error(entry(), action())) return;
  EXPECT_EQ(harmed.code, 1) << harmed.said;
  EXPECT_THAT(harmed.said, HasSubstr("sabotage"));
  // Who claims nothing is told by the node that is left.
  const bool is_told_otherwise = entry() == "claims" && action() == "null";
  EXPECT_THAT(harmed.said, HasSubstr(is_told_otherwise ? "aten.neg" : entry()));
  EXPECT_EQ(run({}).code, 0);
}

TEST_P(Fault, IsAnErrorThatNamesTheEntry) { expect_error({}); }
TEST_P(Fault, IsTheSameErrorFromAWorker) { expect_error({{"BACKPLANE_ISOLATION", "process"}}); }
INSTANTIATE_TEST_SUITE_P(
    All, Fault,
    ::testing::Combine(::testing::Values("device_describe", "device_open", "buffer_create", "copy",
                                         "claims", "compile", "executable_describe", "execute"),
                       ::testing::Values("throw", "throw42", "null", "error", "lost", "wild",
                                         "released", "crowd", "cancelled")),
    kName);

// Sizes and strides that no machine has.
INSTANTIATE_TEST_SUITE_P(Figures, Fault,
                         ::testing::Combine(::testing::Values("executable_describe"),
                                            ::testing::Values("vast", "near", "wide")),
                         kName);
INSTANTIATE_TEST_SUITE_P(FiguresOfADevice, Fault,
                         ::testing::Combine(::testing::Values("device_describe"),
                                            ::testing::Values("vast", "wide")),
                         kName);

class Misuse : public Sabotage {};

TEST_P(Misuse, IsToldWithPluginAndEntry) {
  const Ended harmed = run_harmed();
  EXPECT_EQ(harmed.signal, 0) << harmed.said;
  const bool is_late = action() == "late";
  EXPECT_EQ(harmed.code, is_late ? 1 : 0) << harmed.said;
  const std::string who = "plugin 'sabotage' (sabotage:0: " + entry();
  if (is_late) {
    EXPECT_THAT(harmed.said, AllOf(HasSubstr(who), HasSubstr("refuse_add: the sink was released")));
  } else {
    EXPECT_THAT(harmed.said, AllOf(HasSubstr(who), HasSubstr("error_release: the error was rel"),
                                   HasSubstr("bytes_release: the sink was released")));
  }
  EXPECT_EQ(run({}).code, 0);
}
INSTANTIATE_TEST_SUITE_P(Late, Misuse,
                         ::testing::Combine(::testing::Values("copy", "execute"),
                                            ::testing::Values("late")),
                         kName);
INSTANTIATE_TEST_SUITE_P(Twice, Misuse,
                         ::testing::Combine(::testing::Values("claims", "compile", "execute"),
                                            ::testing::Values("twice")),
                         kName);

class FaultAtTheEnd : public Sabotage {};

TEST_P(FaultAtTheEnd, IsLogged) {
  const Ended harmed = run_harmed();
  EXPECT_EQ(harmed.code, 0) << harmed.said;
  EXPECT_THAT(harmed.said,
              AllOf(HasSubstr("sabotage"), HasSubstr(entry()), HasSubstr("threw an exception")));
}
INSTANTIATE_TEST_SUITE_P(All, FaultAtTheEnd,
                         ::testing::Combine(::testing::Values("executable_release",
                                                              "buffer_release", "device_close",
                                                              "shutdown"),
                                            ::testing::Values("throw", "throw42")),
                         kName);

class FaultAtTheStart : public Sabotage {};

TEST_P(FaultAtTheStart, IsARefusal) {
  const Ended harmed = run_harmed();
  EXPECT_EQ(harmed.code, 1) << harmed.said;
  EXPECT_THAT(harmed.said, HasSubstr("sabotage"));
}
INSTANTIATE_TEST_SUITE_P(All, FaultAtTheStart,
                         ::testing::Combine(::testing::Values("negotiate", "device_count"),
                                            ::testing::Values("throw", "throw42", "null")),
                         kName);

// What ends or hangs the process in-process costs the call in a worker.
class Isolated : public Sabotage {
 protected:
  Ended run_isolated() {
    return run_harmed({{"BACKPLANE_ISOLATION", "process"}, {"BACKPLANE_DEADLINE", "0.5"}});
  }
  // After the work: the results are there.
  static bool is_at_the_end() {
    return entry().ends_with("_release") || entry() == "device_close" || entry() == "shutdown";
  }
};

TEST_P(Isolated, CostsTheCallAndNotTheProgram) {
  const Ended harmed = run_isolated();
  EXPECT_EQ(harmed.signal, 0) << harmed.said;
  EXPECT_EQ(harmed.code, is_at_the_end() ? 0 : 1) << harmed.said;
  // Both are called while the worker answers its first question.
  const bool is_start = entry() == "load" || entry() == "negotiate";
  EXPECT_THAT(harmed.said, AllOf(HasSubstr("sabotage"), HasSubstr("its worker process was ended"),
                                 HasSubstr("inside of " + (is_start ? "load" : entry()))));
  if (action() == "exit" || action() == "_exit") {
    EXPECT_THAT(harmed.said, HasSubstr("with exit status 7"));
  } else if (action() == "hang") {
    EXPECT_THAT(harmed.said, HasSubstr("BACKPLANE_DEADLINE"));
  } else {
    EXPECT_THAT(harmed.said,
                HasSubstr(std::string("by SIG") + ::sigabbrev_np(signal_of(action()))));
  }
  // And it is no reason to leave the plugin out.
  EXPECT_EQ(run({}).code, 0);
}
INSTANTIATE_TEST_SUITE_P(All, Isolated,
                         ::testing::Combine(kEach, ::testing::Values("segv", "bus", "ill", "fpe",
                                                                     "abort", "overflow", "thread",
                                                                     "exit", "_exit", "hang")),
                         kName);

}  // namespace
}  // namespace backplane::tools
