// Plugins in worker processes: the same numbers, and what becomes of calls when a worker ends. What
// each entry does then is tools/sabotage_test.cpp.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/runtime/host/host_services.h"
#include "core/runtime/isolate/worker_process.h"
#include "core/runtime/plugin/trace.h"
#include "core/runtime/testing/files.h"
#include "core/runtime/testing/run_graph.h"

namespace backplane::runtime {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing_files::testing_plugin;
using testing_graph::call;
using testing_graph::Classes;
using testing_graph::compile;
using testing_graph::copies;
using testing_graph::evaluate;
using testing_graph::Inputs;

constexpr std::string_view kLinear = R"(
graph @linear(%x: f32[3, 4], %w: f32[4, 2] static, %b: f32[2] static) -> (f32[3, 2]) {
  %0 = aten.mm(%x, %w) : f32[3, 2]
  %1 = aten.add.Tensor(%0, %b) : f32[3, 2]
  %2 = aten.relu(%1) : f32[3, 2]
  return %2
})";

constexpr std::string_view kDynamic = R"(
graph @dynamic(%x: f32[s0, 4], %w: f32[4, 2] static) -> (f32[s0, 2]) classes(s0: 3 [2, 64]) {
  %0 = aten.mm(%x, %w) : f32[s0, 2]
  %1 = aten.neg(%0) : f32[s0, 2]
  return %1
})";

std::unique_ptr<Plugin> load_isolated(const std::string& path) {
  ::setenv("BACKPLANE_ISOLATION", "process", 1);
  Result<std::unique_ptr<Plugin>> plugin = Plugin::load(path);
  ::unsetenv("BACKPLANE_ISOLATION");
  EXPECT_TRUE(plugin.ok()) << plugin.status().message();
  return plugin.ok() ? std::move(*plugin) : nullptr;
}

std::string built(std::string_view name) {
  return std::string(BACKPLANE_TEST_PLUGIN_DIR) + "/libbackplane_" + std::string(name) + ".so";
}

std::vector<pid_t> workers() {
  std::vector<pid_t> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) {
      std::ifstream name("/proc/" + std::to_string(child) + "/comm");
      std::string text;
      if (name >> text && text == "backplane-worke") found.push_back(child);
    }
  }
  return found;
}

void end_workers() {
  for (const pid_t worker : workers()) {
    ::kill(worker, SIGSEGV);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(worker), &info, WEXITED | WNOWAIT);
  }
}

// A plugin of its own in a worker, and one device of it.
class Isolated : public ::testing::Test {
 protected:
  Device* open(const std::string& path) {
    plugin_ = load_isolated(path);
    if (plugin_ == nullptr) return nullptr;
    EXPECT_TRUE(plugin_->is_isolated());
    Result<Device*> device = plugin_->device(0);
    EXPECT_TRUE(device.ok()) << device.status().message();
    return device.ok() ? *device : nullptr;
  }
  void TearDown() override {
    PackCache::instance().clear();
    plugin_.reset();
    EXPECT_TRUE(workers().empty());
  }

 private:
  std::unique_ptr<Plugin> plugin_;
};

void expect_right(CompiledGraph& compiled, const Classes& classes = {}) {
  Inputs inputs = Inputs::random(compiled.graph(), classes);
  const auto expected = evaluate(compiled.graph(), inputs, classes);
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  const auto found = call(compiled, inputs, classes);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(*found, *expected);
}

class IsolatedPlugins : public Isolated, public ::testing::WithParamInterface<const char*> {
 protected:
  Device* open() {
    const std::string name = GetParam();
    return Isolated::open(name == "scripted" ? testing_plugin(name) : built(name));
  }
};

TEST_P(IsolatedPlugins, GiveTheSameNumbers) {
  Device* const device = open();
  ASSERT_NE(device, nullptr);
  for (const std::string_view text : {kLinear, kDynamic}) {
    auto compiled = compile(text, {device});
    ASSERT_TRUE(compiled.ok()) << compiled.status().message();
    EXPECT_GT((*compiled)->plugin_node_count(), 0u);
    const bool is_dynamic = text == kDynamic;
    for (const std::int64_t rows : {3, 17}) {
      expect_right(**compiled, is_dynamic ? Classes{rows} : Classes{});
      expect_right(**compiled, is_dynamic ? Classes{rows} : Classes{});
    }
  }
}

TEST_P(IsolatedPlugins, ServeSeveralThreads) {
  Device* const device = open();
  ASSERT_NE(device, nullptr);
  auto compiled = compile(kDynamic, {device});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 8; ++i) expect_right(**compiled, {2 + t + i});
    });
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(All, IsolatedPlugins,
                         ::testing::Values("reference", "reference_minimal", "cpu_onednn",
                                           "scripted"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(Isolated, APlugInOfHostMemoryCopiesEachTensorOnce) {
  Device* const device = open(built("cpu_onednn"));
  ASSERT_NE(device, nullptr);
  auto compiled = compile(kLinear, {device});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  expect_right(**compiled);
  device->counters().reset();
  expect_right(**compiled);
  EXPECT_THAT(copies(*device), AllOf(HasSubstr("to: input 1x48"), HasSubstr("from: output 1x24")));
}

TEST_F(Isolated, AnotherWorkerServesTheNextCompileAndKeepsPacks) {
  Device* const device = open(built("cpu_onednn"));
  ASSERT_NE(device, nullptr);
  auto first = compile(kLinear, {device});
  ASSERT_TRUE(first.ok()) << first.status().message();
  Inputs inputs = Inputs::random((*first)->graph(), {});
  const auto expected = call(**first, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  for (int round = 0; round < 3; ++round) {
    end_workers();
    const auto lost = call(**first, inputs);
    ASSERT_FALSE(lost.ok());
    EXPECT_EQ(lost.status().code(), Code::kDeviceLost);
    EXPECT_THAT(lost.status().message(),
                AnyOf(HasSubstr("its worker process was ended by SIGSEGV inside of execute"),
                      HasSubstr("it lived in a worker process that has ended")));
    device->counters().reset();
    auto next = compile(kLinear, {device});
    ASSERT_TRUE(next.ok()) << next.status().message();
    EXPECT_EQ((*next)->fallback_node_count(), 0u);
    const auto found = call(**next, inputs);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, *expected);
    EXPECT_THAT(copies(*device), ::testing::Not(HasSubstr("weight")));
    *first = std::move(*next);
  }
  end_workers();
  ASSERT_FALSE(call(**first, inputs).ok());
  const auto last = compile(kLinear, {device});
  ASSERT_FALSE(last.ok());
  EXPECT_THAT(last.status().message(), HasSubstr("it was the last of 4"));
}

TEST_F(Isolated, WhatWasCompiledIsMadeAgainInAnotherWorker) {
  Device* const device = open(built("cpu_onednn"));
  ASSERT_NE(device, nullptr);
  auto first = compile(kLinear, {device}), second = compile(kDynamic, {device});
  ASSERT_TRUE(first.ok() && second.ok());
  Inputs inputs = Inputs::random((*first)->graph(), {});
  const auto expected = call(**first, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  expect_right(**second, {7});
  for (int round = 0; round < 3; ++round) {
    end_workers();
    EXPECT_EQ(call(**first, inputs).status().code(), Code::kDeviceLost);  // which finds it out
    device->counters().reset();
    const auto found = call(**first, inputs);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, *expected);
    EXPECT_THAT(copies(*device), ::testing::Not(HasSubstr("weight")));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) threads.emplace_back([&, t] { expect_right(**second, {7 + t}); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(workers().size(), 1u);
  }
  end_workers();
  EXPECT_FALSE(call(**first, inputs).ok());
  EXPECT_THAT(call(**first, inputs).status().message(), HasSubstr("it was the last of 4"));
}

TEST_P(IsolatedPlugins, AreCalledByManyThreadsAfterAWorkerEnded) {
  Device* const device = open();
  ASSERT_NE(device, nullptr);
  auto compiled = compile(kDynamic, {device});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  end_workers();
  Inputs inputs = Inputs::random((*compiled)->graph(), {3});
  EXPECT_EQ(call(**compiled, inputs, {3}).status().code(), Code::kDeviceLost);
  std::vector<std::thread> threads;  // all find the device unopened
  for (int t = 0; t < 8; ++t) threads.emplace_back([&, t] { expect_right(**compiled, {2 + t}); });
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Isolated, WhatEndsEveryWorkerIsNotMadeAgainForEver) {
  ::setenv("BACKPLANE_SABOTAGE", "execute segv", 1);
  ::setenv("BACKPLANE_SABOTAGE_HOST_MEMORY", "1", 1);
  Device* const device = open(testing_plugin("sabotage"));
  ASSERT_NE(device, nullptr);
  auto compiled = compile(kLinear, {device});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  Inputs inputs = Inputs::random((*compiled)->graph(), {});
  std::string last;
  for (int i = 0; i < 5; ++i) last = call(**compiled, inputs).status().message();
  ::unsetenv("BACKPLANE_SABOTAGE");
  ::unsetenv("BACKPLANE_SABOTAGE_HOST_MEMORY");
  EXPECT_THAT(last, HasSubstr("it was the last of 4"));
}

TEST_P(IsolatedPlugins, WhatADeviceOfItsOwnMemoryHeldComesAnewFromTheHost) {
  Device* const device = open();
  ASSERT_NE(device, nullptr);
  auto compiled = compile(kLinear, {device}), other = compile(kDynamic, {device});
  ASSERT_TRUE(compiled.ok() && other.ok());
  Inputs inputs = Inputs::random((*compiled)->graph(), {});
  const auto expected = call(**compiled, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  expect_right(**other, {5});
  Result<DeviceBuffer> held = device->allocate(64);  // what nobody else has a copy of
  ASSERT_TRUE(held.ok());
  for (int round = 0; round < 2; ++round) {
    end_workers();
    EXPECT_EQ(call(**compiled, inputs).status().code(), Code::kDeviceLost);
    device->counters().reset();
    const auto found = call(**compiled, inputs);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, *expected);
    EXPECT_EQ(copies(*device).find("weight") != std::string::npos, device->loses_memory());
    expect_right(**other, {5 + round});
  }
  if (!device->loses_memory()) return;
  std::array<char, 64> bytes{};
  const Status gone = device->copy_from_device({held->get(), nullptr, 0, bytes.size()},
                                               bytes.data(), CopyCause::kOther);
  EXPECT_EQ(gone.code(), Code::kDeviceLost);
  EXPECT_THAT(gone.message(), HasSubstr("a buffer lived in a worker process that has ended"));
}

TEST_F(Isolated, AChildOfForkCallsNothingAndHoldsNothing) {
  Device* const device = open(built("cpu_onednn"));
  ASSERT_NE(device, nullptr);
  auto compiled = compile(kLinear, {device});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  const pid_t child = ::fork();
  if (child == 0) {
    Inputs inputs = Inputs::random((*compiled)->graph(), {});
    const auto refused = call(**compiled, inputs);
    const bool is_said = !refused.ok() && refused.status().code() == Code::kUnsupported;
    ::_exit(is_said ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  expect_right(**compiled);
}

TEST_F(Isolated, AChildOfForkKeepsWhatTheProgramOpenedAfterAWorkerEnded) {
  Device* const device = open(built("cpu_onednn"));
  ASSERT_NE(device, nullptr);
  auto compiled = compile(kLinear, {device});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  expect_right(**compiled);
  end_workers();
  Inputs inputs = Inputs::random((*compiled)->graph(), {});
  EXPECT_EQ(call(**compiled, inputs).status().code(), Code::kDeviceLost);
  std::array<int, 16> opened{};  // the numbers of channels that are no more, among others
  for (int& one : opened) one = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool are_open =
        std::ranges::all_of(opened, [](int one) { return ::fcntl(one, F_GETFD) >= 0; });
    ::_exit(are_open ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const int one : opened) ::close(one);
}

TEST_F(Isolated, AWorkerThatTheProgramWaitedForIsLostLikeAnyOther) {
  Device* const device = open(built("cpu_onednn"));
  ASSERT_NE(device, nullptr);
  auto compiled = compile(kLinear, {device});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  for (const pid_t worker : workers()) {
    ::kill(worker, SIGKILL);
    ASSERT_EQ(::waitpid(worker, nullptr, 0), worker);
  }
  Inputs inputs = Inputs::random((*compiled)->graph(), {});
  const auto lost = call(**compiled, inputs);
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.status().code(), Code::kDeviceLost);
  EXPECT_THAT(lost.status().message(), HasSubstr("in a way that somebody else was told"));
  expect_right(**compiled);
}

TEST_F(Isolated, AProcessThatEndsTakesItsWorkerWithIt) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto plugin = load_isolated(built("reference"));
    const std::vector<pid_t> mine = workers();
    const pid_t worker = mine.size() == 1 ? mine[0] : 0;
    if (::write(pipe[1], &worker, sizeof worker) < 0) ::_exit(1);
    ::kill(::getpid(), SIGKILL);
  }
  pid_t worker = 0;
  ASSERT_EQ(::read(pipe[0], &worker, sizeof worker), static_cast<ssize_t>(sizeof worker));
  ASSERT_NE(worker, 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const auto is_running = [&] {  // not there, or nobody has asked how it ended
    std::ifstream stat("/proc/" + std::to_string(worker) + "/stat");
    std::string number, name, state;
    return (stat >> number >> name >> state) && state != "Z";
  };
  for (int i = 0; i < 200 && is_running(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(is_running());
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_F(Isolated, AnInterruptEndsACallThatHangs) {
  ::setenv("BACKPLANE_SABOTAGE", "execute hang", 1);
  Device* const device = open(testing_plugin("sabotage"));
  ::unsetenv("BACKPLANE_SABOTAGE");
  ASSERT_NE(device, nullptr);
  auto compiled = compile(kLinear, {device});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  set_interrupt_check([] { return true; });
  Inputs inputs = Inputs::random((*compiled)->graph(), {});
  const auto ended = call(**compiled, inputs);
  set_interrupt_check(nullptr);
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.status().code(), Code::kCancelled);
  EXPECT_THAT(ended.status().message(), HasSubstr("was ended by an interrupt inside of execute"));
}

TEST_F(Isolated, SpansOfThePluginAreInTheTrace) {
  Device* const device = open(built("cpu_onednn"));
  ASSERT_NE(device, nullptr);
  auto compiled = compile(kLinear, {device});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  clear_trace();
  start_trace();
  expect_right(**compiled);
  stop_trace();
  std::string names;
  for (const TraceTotal& total : trace_totals()) names += total.name + "\n";
  EXPECT_THAT(names, AllOf(HasSubstr("cpu_onednn:0: execute"), HasSubstr("aten.mm")));
  clear_trace();
}

TEST(Isolation, ARefusalOfTheWorkerIsTheSameAsInProcess) {
  ::setenv("BACKPLANE_ISOLATION", "broken_answers_version,broken_throws", 1);
  const auto version = Plugin::load(testing_plugin("broken_answers_version"));
  const auto throws = Plugin::load(testing_plugin("broken_throws"));
  ::unsetenv("BACKPLANE_ISOLATION");
  const auto here = Plugin::load(testing_plugin("broken_answers_version"));
  ASSERT_FALSE(version.ok() || throws.ok() || here.ok());
  EXPECT_EQ(version.status().message(), here.status().message());
  EXPECT_THAT(throws.status().message(), HasSubstr("its negotiation threw an exception"));
}

TEST_F(Isolated, AnotherFileUnderTheLibrarysNameIsNotTakenAtARestart) {
  const testing_files::TempFolder folder;
  const std::string path = folder.file("libbackplane_cpu_onednn.so");
  for (const auto& beside : std::filesystem::directory_iterator(BACKPLANE_TEST_PLUGIN_DIR))
    if (beside.path().filename().string().starts_with("libdnnl"))
      std::filesystem::create_symlink(beside.path(),
                                      folder.file(beside.path().filename().string()));
  std::filesystem::copy_file(built("cpu_onednn"), path);
  Device* const device = open(path);
  ASSERT_NE(device, nullptr);
  std::filesystem::remove(path);
  testing_files::write_file(path, testing_files::read_file(built("cpu_onednn")) + "x");
  end_workers();
  EXPECT_FALSE(compile(kLinear, {device}).ok());  // finds that the worker ended
  const auto compiled = compile(kLinear, {device});
  ASSERT_FALSE(compiled.ok());
  EXPECT_THAT(compiled.status().message(), HasSubstr("changed since it was first loaded"));
}

TEST(Isolation, AWorkerThatIsNotThereIsNamed) {
  ::setenv("BACKPLANE_WORKER", "/nowhere/backplane-worker", 1);
  ::setenv("BACKPLANE_ISOLATION", "reference", 1);
  const auto plugin = Plugin::load(built("reference"));
  ::unsetenv("BACKPLANE_ISOLATION");
  ::unsetenv("BACKPLANE_WORKER");
  ASSERT_FALSE(plugin.ok());
  EXPECT_THAT(plugin.status().message(),
              AllOf(HasSubstr("was refused"), HasSubstr("/nowhere/backplane-worker")));
}

}  // namespace
}  // namespace backplane::runtime
