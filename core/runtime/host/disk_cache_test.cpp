#include "core/runtime/host/disk_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "core/runtime/testing/files.h"

namespace backplane::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing_files::read_file;
using testing_files::TempFolder;
using testing_files::write_file;

// Before any test asks for DiskCache::instance(): the user's own cache is none of our business.
const TempFolder process_cache;
const int process_cache_set = ::setenv("BACKPLANE_CACHE_DIR", process_cache.path().c_str(), 0);

std::vector<fs::path> files_of(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

TEST(Sha256, MatchesThePublishedVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

class DiskCacheTest : public ::testing::Test {
 protected:
  TempFolder folder_;
};

TEST_F(DiskCacheTest, GivesBackWhatWasPut) {
  const std::string directory = folder_.file("new/deeper");
  DiskCache cache(directory);
  ASSERT_TRUE(cache.usable());
  struct stat info {};
  ASSERT_EQ(::stat(directory.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_FALSE(cache.get("key").has_value());
  const std::string blob("a\0b", 3);
  cache.put("key", blob);
  EXPECT_EQ(cache.get("key"), blob);
  cache.put("key", "");
  EXPECT_EQ(cache.get("key"), "");
  EXPECT_FALSE(cache.get("other").has_value());
  EXPECT_EQ(DiskCache(directory).get("key"), "");
}

TEST_F(DiskCacheTest, TornAndFlippedFilesAreMissingAndRemoved) {
  DiskCache cache(folder_.path());
  const std::string blob(1000, 'x');
  cache.put("key", blob);
  ASSERT_EQ(files_of(folder_.path()).size(), 1u);
  const std::string path = files_of(folder_.path())[0].string();
  const std::string good = read_file(path);
  for (const std::size_t size : {0ul, 5ul, 87ul, 88ul, 500ul, good.size() - 1}) {
    write_file(path, std::string_view(good).substr(0, size));
    EXPECT_FALSE(cache.get("key").has_value()) << size;
    EXPECT_FALSE(fs::exists(path)) << size;
  }
  write_file(path, good + "tail");
  EXPECT_FALSE(cache.get("key").has_value());
  for (std::size_t at = 0; at < good.size(); at += 7) {
    if (at >= 12 && at < 16) continue;  // reserved
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ 4);
    write_file(path, flipped);
    EXPECT_FALSE(cache.get("key").has_value()) << at;
  }
  write_file(path, good);
  EXPECT_EQ(cache.get("key"), blob);
}

TEST_F(DiskCacheTest, AFileOfAnotherKeyAndALinkAreForeign) {
  DiskCache cache(folder_.path());
  cache.put("a", "content of a");
  const std::string file = files_of(folder_.path())[0].string();
  const std::string as_b = folder_.file(sha256_hex("b") + ".bin");
  fs::copy(file, as_b);
  EXPECT_FALSE(cache.get("b").has_value());
  const std::string moved = folder_.file("moved");
  fs::rename(file, moved);
  fs::create_symlink(moved, file);
  EXPECT_FALSE(cache.get("a").has_value());
  EXPECT_TRUE(fs::exists(moved));
}

TEST_F(DiskCacheTest, TwoProcessesWriteAndRead) {
  const std::string blobs[] = {std::string(20000, 'p'), std::string(30000, 'q')};
  pid_t children[2] = {};
  for (int i = 0; i < 2; ++i) {
    children[i] = ::fork();
    if (children[i] != 0) continue;
    DiskCache cache(folder_.path());
    bool right = true;
    for (int round = 0; round < 100; ++round) {
      cache.put("shared", blobs[i]);
      const std::optional<std::string> got = cache.get("shared");
      right = right && (!got || *got == blobs[0] || *got == blobs[1]);
    }
    ::_exit(right ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const std::optional<std::string> last = DiskCache(folder_.path()).get("shared");
  ASSERT_TRUE(last.has_value());
  EXPECT_TRUE(*last == blobs[0] || *last == blobs[1]);
  EXPECT_EQ(files_of(folder_.path()).size(), 1u);  // nothing is left aside
}

TEST_F(DiskCacheTest, ADirectoryThatOthersMayEnterIsNotUsed) {
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  ::testing::internal::CaptureStderr();
  DiskCache cache(folder_.path());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("other users may enter it"));
  EXPECT_FALSE(cache.usable());
  cache.put("key", "value");
  EXPECT_FALSE(cache.get("key").has_value());
  EXPECT_TRUE(files_of(folder_.path()).empty());
  write_file(folder_.file("file"), "");
  EXPECT_FALSE(DiskCache(folder_.file("file")).usable());
  EXPECT_FALSE(DiskCache("relative").usable());
  EXPECT_FALSE(DiskCache("/proc/absent/cache").usable());
}

// In a child, because root writes everywhere and has to become somebody else first.
TEST_F(DiskCacheTest, AReadOnlyDirectoryIsWarnedAboutOnce) {
  constexpr uid_t kNobody = 65534;
  const uid_t user = ::geteuid() == 0 ? kNobody : ::geteuid();
  ASSERT_EQ(::chown(folder_.path().c_str(), user, static_cast<gid_t>(-1)), 0);
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0500), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() != user && ::setuid(user) != 0) ::_exit(2);
    ::testing::internal::CaptureStderr();
    DiskCache cache(folder_.path());
    const bool usable = cache.usable();
    cache.put("key", "value");
    cache.put("key", "value");
    const bool empty = !cache.get("key").has_value();
    const std::string log = ::testing::internal::GetCapturedStderr();
    const bool once = log.find("cannot write into the cache directory") != std::string::npos &&
                      std::count(log.begin(), log.end(), '\n') == 1;
    ::_exit(usable && empty && once ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(DiskCacheTest, TheLongestUnusedGoFirst) {
  constexpr std::uint64_t kLimit = 100'000;
  DiskCache cache(folder_.path(), kLimit);
  const std::string blob(10'000, 'b');
  const auto now = fs::file_time_type::clock::now();
  for (int i = 0; i < 30; ++i) {
    const std::string key = "key" + std::to_string(i);
    cache.put(key, blob);
    // An order that does not depend on the clock's resolution.
    fs::last_write_time(folder_.file(sha256_hex(key) + ".bin"),
                        now - std::chrono::hours(24) + std::chrono::minutes(i));
  }
  std::uint64_t total_bytes = 0;
  for (const fs::path& file : files_of(folder_.path())) total_bytes += fs::file_size(file);
  EXPECT_LE(total_bytes, kLimit);
  EXPECT_TRUE(cache.get("key29").has_value());
  EXPECT_FALSE(cache.get("key0").has_value());
  cache.put("huge", std::string(kLimit, 'h'));  // would push out all others
  EXPECT_FALSE(cache.get("huge").has_value());
}

TEST_F(DiskCacheTest, WhatADeadProcessLeftAsideIsRemoved) {
  const std::string old_file = folder_.file("x.bin.1.0.tmp");
  const std::string new_file = folder_.file("y.bin.1.0.tmp");
  write_file(old_file, "half");
  write_file(new_file, "half");
  fs::last_write_time(old_file, fs::file_time_type::clock::now() - std::chrono::hours(2));
  DiskCache(folder_.path()).put("key", "value");
  EXPECT_FALSE(fs::exists(old_file));
  EXPECT_TRUE(fs::exists(new_file));
}

}  // namespace
}  // namespace backplane::runtime
