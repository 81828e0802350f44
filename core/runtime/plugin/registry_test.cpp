#include "core/runtime/plugin/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "core/runtime/testing/files.h"

namespace backplane::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_files::TempFolder;
using testing_files::testing_plugin;
using testing_files::write_file;

TEST(Registry, FindsAndLoadsOnce) {
  Registry registry;
  ASSERT_TRUE(registry.add_path(testing_plugin("good"), "explicit path").ok());
  ASSERT_TRUE(registry.add_path(testing_plugin("good"), "explicit path").ok());  // known already
  ASSERT_EQ(registry.entries().size(), 1u);
  EXPECT_FALSE(registry.entries()[0].loaded);
  std::vector<std::thread> threads;
  std::array<Plugin*, 4> found{};
  for (Plugin*& plugin : found) {
    threads.emplace_back([&] {
      const Result<Plugin*> result = registry.find("good");
      plugin = result.ok() ? *result : nullptr;
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_NE(found[0], nullptr);
  for (const Plugin* plugin : found) EXPECT_EQ(plugin, found[0]);
  const PluginEntry entry = registry.entries()[0];
  EXPECT_TRUE(entry.loaded);
  EXPECT_EQ(entry.name, "good");
  EXPECT_EQ(entry.origin, "explicit path");
  EXPECT_EQ(entry.error, "");
  registry.shutdown();
  EXPECT_THAT(registry.find("good").status().message(), HasSubstr("shut down"));
}

TEST(Registry, SuggestsTheNearestName) {
  Registry registry;
  EXPECT_THAT(registry.find("good").status().message(), HasSubstr("no plugin was found at all"));
  ASSERT_TRUE(registry.add_path(testing_plugin("good"), "explicit path").ok());
  ASSERT_TRUE(registry.add_path(testing_plugin("broken_throws"), "explicit path").ok());
  const Status near = registry.find("goood").status();
  EXPECT_EQ(near.code(), Code::kNotFound);
  EXPECT_EQ(near.message(),
            "There is no plugin named 'goood'; known are 'good', 'broken_throws'; did you mean "
            "'good'?");
  EXPECT_THAT(registry.find("something_else").status().message(),
              AllOf(HasSubstr("known are 'good'"), HasSubstr("BACKPLANE_PLUGIN_PATH")));
}

TEST(Registry, KeepsWhyAPluginWasRefused) {
  Registry registry;
  ASSERT_TRUE(registry.add_path(testing_plugin("broken_throws"), "explicit path").ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(registry.find("broken_throws").status().message(),
                HasSubstr("vendor runtime is missing"));
  }
  EXPECT_THAT(registry.entries()[0].error, HasSubstr("vendor runtime is missing"));
  EXPECT_FALSE(registry.add_path(testing_plugin("broken_no_note"), "explicit path").ok());
  EXPECT_THAT(registry.find("broken_no_note").status().message(), HasSubstr("no Backplane note"));
}

TEST(Registry, OneBrokenPluginHidesNoOther) {
  TempFolder folder;
  std::filesystem::copy(testing_plugin("good"), folder.file("libbackplane_zz_good.so"));
  write_file(folder.file("libbackplane_broken.so"), "text");
  write_file(folder.file("libbackplane_good.so"), "");  // would have been called "good"
  write_file(folder.file("other.so"), "not looked at");
  Registry registry;
  ASSERT_TRUE(registry.add_path(folder.path(), "user directory").ok());
  EXPECT_EQ(registry.entries().size(), 3u);
  EXPECT_TRUE(registry.find("good").ok());
  EXPECT_THAT(registry.find("broken").status().message(), HasSubstr("not an ELF library"));
}

TEST(Registry, TheFirstOfANameStays) {
  TempFolder folder;
  const std::string second = folder.file("libbackplane_good.so");
  std::filesystem::copy(testing_plugin("good"), second);
  Registry registry;
  ASSERT_TRUE(registry.add_path(testing_plugin("good"), "package").ok());
  const Status status = registry.add_path(second, "explicit path");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), AllOf(HasSubstr(second), HasSubstr(testing_plugin("good")),
                                      HasSubstr("found first")));
  const Result<Plugin*> plugin = registry.find("good");
  ASSERT_TRUE(plugin.ok());
  EXPECT_EQ((*plugin)->path(), testing_plugin("good"));
}

TEST(Registry, TakesAbsolutePathsOnly) {
  Registry registry;
  EXPECT_THAT(registry.add_path("plugins", "explicit path").message(), HasSubstr("not absolute"));
  EXPECT_FALSE(registry.add_path("/absent/folder/libbackplane_x.so", "explicit path").ok());
}

// The load stops where the policy is read, which is a FIFO.
TEST(Registry, AChildThatIsForkedWhileAPluginLoadsGetsAnErrorForItAndTheOthers) {
  const TempFolder folder;
  std::filesystem::create_directories(folder.path() + "/backplane");
  const std::string fifo = folder.path() + "/backplane/policy";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  Registry& registry = Registry::instance();
  ASSERT_TRUE(registry.add_path(testing_plugin("good"), "explicit path").ok());
  ASSERT_TRUE(registry.add_path(testing_plugin("scripted"), "explicit path").ok());
  ::setenv("XDG_CONFIG_HOME", folder.path().c_str(), 1);
  std::vector<std::thread> threads;
  std::atomic<int> loaded = 0;
  for (int i = 0; i < 3; ++i)  // one loads, the others wait for it
    threads.emplace_back([&] { loaded += registry.find("good").ok() ? 1 : 0; });
  int fd = -1;
  while ((fd = ::open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)) < 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::unsetenv("XDG_CONFIG_HOME");
    bool is_right =
        registry.find("good").status().message().find(
            "was being loaded by another thread when this process was forked") != std::string::npos;
    std::vector<std::thread> finders;  // of one that the child loads itself, twice over
    for (int i = 0; i < 3; ++i)
      finders.emplace_back([&] { static_cast<void>(registry.find("scripted").ok()); });
    for (std::thread& finder : finders) finder.join();
    is_right = is_right && registry.find("scripted").ok();
    ::_exit(is_right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(fd);  // an empty policy
  for (std::thread& thread : threads) thread.join();
  ::unsetenv("XDG_CONFIG_HOME");
  EXPECT_EQ(loaded, 3);
}

}  // namespace
}  // namespace backplane::runtime
