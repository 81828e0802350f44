// A library's hash says what was loaded, whatever becomes of its file meanwhile.
#include "core/runtime/plugin/library_load.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "core/runtime/host/disk_cache.h"
#include "core/runtime/plugin/plugin.h"
#include "core/runtime/testing/files.h"

namespace backplane::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing_files::read_file;
using testing_files::TempFolder;
using testing_files::testing_plugin;
using testing_files::write_file;

// The policy is read between hash and load; one that is a FIFO stops a load there.
class LibraryLoadTest : public ::testing::Test {
 protected:
  LibraryLoadTest() {
    ::setenv("XDG_CONFIG_HOME", folder_.path().c_str(), 1);
    std::filesystem::create_directories(folder_.path() + "/backplane");
    library_ = folder_.file("libbackplane_good.so");
    put("good");
  }
  ~LibraryLoadTest() override { ::unsetenv("XDG_CONFIG_HOME"); }

  // Another file at that path.
  void put(std::string_view name) {
    write_file(library_ + ".new", read_file(testing_plugin(name)));
    std::filesystem::rename(library_ + ".new", library_);
  }
  // Other bytes in the same file, at the same time as far as the modification time says.
  void overwrite(std::string_view bytes) {
    struct stat info {};
    ASSERT_EQ(::stat(library_.c_str(), &info), 0);
    const int fd = ::open(library_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
    ASSERT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    const timespec times[] = {info.st_atim, info.st_mtim};
    EXPECT_EQ(::futimens(fd, times), 0);
    ::close(fd);
  }
  void allow(const std::string& bytes) {
    write_file(folder_.path() + "/backplane/allowed", sha256_hex(bytes) + "\n");
  }
  // Loads it and calls `change` after the checks, before the load.
  Result<std::unique_ptr<Plugin>> load(const std::string& policy,
                                       const std::function<void()>& change) {
    const std::string fifo = folder_.path() + "/backplane/policy";
    EXPECT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    Result<std::unique_ptr<Plugin>> plugin = Status(Code::kInternal, "not loaded");
    std::atomic<bool> is_over = false;
    std::thread loader([&] {
      plugin = Plugin::load(library_);
      is_over = true;
    });
    int fd = -1;
    while (fd < 0 && !is_over) {
      fd = ::open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_GE(fd, 0) << "the policy was not read";
    change();
    EXPECT_EQ(::write(fd, policy.data(), policy.size()), static_cast<ssize_t>(policy.size()));
    ::close(fd);
    loader.join();
    std::filesystem::remove(fifo);
    return plugin;
  }

  TempFolder folder_;
  std::string library_;
};

// What another file would do: its constructor changes the process's state.
constexpr std::string_view kOther = "broken_changes_process";

void expect_good(const Result<std::unique_ptr<Plugin>>& plugin) {
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  EXPECT_EQ((*plugin)->name(), "good");
  EXPECT_EQ((*plugin)->sha256(), sha256_hex(read_file(testing_plugin("good"))));
  EXPECT_TRUE((*plugin)->device(0).ok());
}

TEST_F(LibraryLoadTest, AFileThatIsReplacedAfterItsChecksIsNotTheOneThatIsLoaded) {
  allow(read_file(library_));
  ::testing::internal::CaptureStderr();
  const auto plugin = load("allow-list", [&] { put(kOther); });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("the umask")));
  expect_good(plugin);
}

TEST_F(LibraryLoadTest, AFileThatIsWrittenToAfterItsChecksIsRefused) {
  allow(read_file(library_));
  ::testing::internal::CaptureStderr();
  const auto plugin = load("allow-list", [&] { overwrite(read_file(testing_plugin(kOther))); });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("the umask")));
  ASSERT_FALSE(plugin.ok());
  EXPECT_THAT(plugin.status().message(), HasSubstr("the file changed while it was loaded"));
}

TEST_F(LibraryLoadTest, WithoutAPolicyAChangeIsFoundAfterwards) {
  std::string bytes = read_file(library_);
  bytes.back() ^= 1;  // behind everything that is mapped
  EXPECT_THAT(load("off", [&] { overwrite(bytes); }).status().message(),
              HasSubstr("the file changed while it was loaded"));
  put("good_stripped");
  EXPECT_THAT(load("off", [&] { put("good"); }).status().message(),
              HasSubstr("the file changed while it was loaded"));
}

TEST_F(LibraryLoadTest, ANewModeIsNoChange) {
  expect_good(load("off", [&] { ::chmod(library_.c_str(), 0600); }));
}

TEST_F(LibraryLoadTest, AnotherFileUnderTheNameOfALoadedOneIsRefused) {
  ASSERT_TRUE(Plugin::load(library_).ok());
  put("good_sysv_hash");  // the loader would answer with what it has under that name
  EXPECT_THAT(Plugin::load(library_).status().message(), HasSubstr("the file changed"));
}

TEST_F(LibraryLoadTest, OnlyTheExpectedContentIsTaken) {
  const std::string expected = sha256_hex(read_file(library_));
  EXPECT_TRUE(Plugin::load(library_, expected).ok());
  put("good_stripped");
  EXPECT_THAT(Plugin::load(library_, expected).status().message(),
              HasSubstr("changed since it was first loaded"));
}

TEST_F(LibraryLoadTest, ASealedCopyIsKnownByItsPathAndLoadedOnce) {
  allow(read_file(library_));
  write_file(folder_.path() + "/backplane/policy", "allow-list");
  const auto first = Plugin::load(library_), second = Plugin::load(library_);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*first)->api().shutdown, (*second)->api().shutdown);
  Dl_info info{};
  ASSERT_NE(::dladdr(reinterpret_cast<const void*>((*first)->api().shutdown), &info), 0);
  EXPECT_EQ(info.dli_fname, library_);
  void* const again = ::dlopen(library_.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  EXPECT_NE(again, nullptr);
}

TEST_F(LibraryLoadTest, NobodyWritesToASealedCopy) {
  const auto file = LibraryFile::open(library_);
  ASSERT_TRUE(file.ok());
  const auto copy = file->sealed_copy();
  ASSERT_TRUE(copy.ok()) << copy.status().message();
  EXPECT_EQ(*copy->sha256(), *file->sha256());
  const int fd = ::open(copy->descriptor_path().c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_LT(::write(fd, "x", 1), 0);
  EXPECT_LT(::ftruncate(fd, 0), 0);
  ::close(fd);
}

}  // namespace
}  // namespace backplane::runtime
