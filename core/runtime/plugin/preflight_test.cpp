#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "core/runtime/plugin/library_facts.h"
#include "core/runtime/plugin/plugin.h"
#include "core/runtime/testing/files.h"

namespace backplane::runtime {
namespace {

using ::testing::HasSubstr;
using testing_files::read_file;
using testing_files::TempFolder;
using testing_files::testing_plugin;
using testing_files::write_file;

class PreflightTest : public ::testing::Test {
 protected:
  std::string refusal_of(const std::string& path) {
    const Result<PluginNote> note = preflight(path);
    EXPECT_FALSE(note.ok()) << path;
    EXPECT_THAT(note.status().message(), HasSubstr(path));  // always names the file
    return note.status().message();
  }
  std::string refusal_of_bytes(std::string_view bytes) {
    const std::string path = folder_.file("libbackplane_x.so");
    write_file(path, bytes);
    return refusal_of(path);
  }

  TempFolder folder_;
};

TEST_F(PreflightTest, ReadsTheNote) {
  for (const char* name : {"good", "good_stripped", "good_sysv_hash"}) {
    const Result<PluginNote> note = preflight(testing_plugin(name));
    ASSERT_TRUE(note.ok()) << note.status().message();
    EXPECT_EQ(note->name, "good");
    EXPECT_EQ(note->vendor, "Backplane tests");
    EXPECT_EQ(note->version, "0.1");
    EXPECT_EQ(note->abi_min, BP_ABI_VERSION);
    EXPECT_EQ(note->abi_max, BP_ABI_VERSION);
  }
}

TEST_F(PreflightTest, RefusesWhatIsNoLibrary) {
  EXPECT_THAT(refusal_of(folder_.file("absent.so")), HasSubstr("cannot be opened"));
  EXPECT_EQ(preflight(folder_.file("absent.so")).status().code(), Code::kNotFound);
  EXPECT_THAT(refusal_of(folder_.path()), HasSubstr("it is a directory"));
  EXPECT_THAT(refusal_of("relative.so"), HasSubstr("not absolute"));
  EXPECT_THAT(refusal_of_bytes(""), HasSubstr("it is empty"));
  EXPECT_THAT(refusal_of_bytes("#!/bin/sh\necho plugin\n"),
              HasSubstr("not an ELF library; it starts with '#!/bin/s'"));
  EXPECT_THAT(refusal_of_bytes("hello\nworld\n"), HasSubstr("it starts with 'hello'; copy"));
  EXPECT_THAT(refusal_of_bytes("\x7f"
                               "ELF"),
              HasSubstr("truncated"));
  EXPECT_THAT(refusal_of("/proc/self/exe"), HasSubstr("was refused"));
  const std::string fifo = folder_.file("fifo.so");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(refusal_of(fifo), HasSubstr("not a regular file"));
}

TEST_F(PreflightTest, RefusesOtherMachinesAndKinds) {
  std::string bytes = read_file(testing_plugin("good"));
  ASSERT_GT(bytes.size(), 64u);
  const auto patched = [&](std::size_t at, char value) {
    std::string copy = bytes;
    copy[at] = value;
    return copy;
  };
  EXPECT_THAT(refusal_of_bytes(patched(18, 8)),  // e_machine
              HasSubstr("it is built for ELF machine number 8, this process runs"));
  EXPECT_THAT(refusal_of_bytes(patched(4, 1)), HasSubstr("not a 64-bit library"));
  EXPECT_THAT(refusal_of_bytes(patched(5, 2)), HasSubstr("not a little-endian library"));
  EXPECT_THAT(refusal_of_bytes(patched(16, 1)), HasSubstr("not a shared library"));
  EXPECT_THAT(refusal_of_bytes(patched(54, 1)), HasSubstr("program header table is damaged"));
}

TEST_F(PreflightTest, RefusesEveryCut) {
  const std::string bytes = read_file(testing_plugin("good"));
  const std::string path = folder_.file("libbackplane_cut.so");
  for (std::size_t size = 0; size < bytes.size(); size += size < 512 ? 5 : 211) {
    write_file(path, std::string_view(bytes).substr(0, size));
    EXPECT_FALSE(Plugin::load(path).ok()) << size;
  }
}

// Without the section table the end of the file is not missed, so the segments must tell.
TEST_F(PreflightTest, SurvivesCutsWithoutSections) {
  std::string bytes = read_file(testing_plugin("good_stripped"));
  std::memset(bytes.data() + 40, 0, 8);  // e_shoff
  const std::string path = folder_.file("libbackplane_cut.so");
  std::size_t refused = 0;
  for (std::size_t size = 64; size < bytes.size(); size += 113) {
    write_file(path, std::string_view(bytes).substr(0, size));
    refused += preflight(path).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 50u);
}

TEST_F(PreflightTest, SurvivesDamage) {
  const std::string bytes = read_file(testing_plugin("good"));
  const std::string path = folder_.file("libbackplane_damaged.so");
  std::mt19937 random(20261121);
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    std::string damaged = bytes;
    for (int i = 0; i < 8; ++i) {
      // Mostly in the headers, where damage tells.
      const std::size_t range = i < 6 ? 1024 : damaged.size();
      damaged[random() % range] = static_cast<char>(random());
    }
    write_file(path, damaged);
    const Result<PluginNote> note = preflight(path);
    if (note.ok()) continue;
    ++refused;
    EXPECT_THAT(note.status().message(), HasSubstr("libbackplane_damaged.so"));
  }
  EXPECT_GT(refused, 100);
}

// The bytes of a library with one text in its string table replaced by another of the same length.
std::string renamed(std::string bytes, std::string_view from, std::string_view to) {
  const std::size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) bytes.replace(at, to.size(), to);
  return bytes;
}

TEST_F(PreflightTest, RefusesWhatIsLoadedFromTheCurrentDirectory) {
  EXPECT_THAT(refusal_of(testing_plugin("relative_run_path")),
              HasSubstr("its run path has the relative part 'lib'"));
  EXPECT_THAT(refusal_of(testing_plugin("empty_run_path")),
              HasSubstr("its run path has the relative part ''"));
  EXPECT_THAT(refusal_of_bytes(renamed(read_file(testing_plugin("broken_needs_torch")),
                                       "libtorch_fake.so", "./fake/x/fake.so")),
              HasSubstr("it needs './fake/x/fake.so', which is searched from the current"));
}

TEST_F(PreflightTest, RefusesFilters) {
  EXPECT_THAT(refusal_of(testing_plugin("filter")), HasSubstr("it is a filter"));
  EXPECT_THAT(refusal_of(testing_plugin("auxiliary")), HasSubstr("it is a filter"));
}

TEST_F(PreflightTest, RefusesASecondDynamicSection) {
  std::string bytes = read_file(testing_plugin("good"));
  // The header of the stack becomes one of another dynamic section.
  const auto table = *reinterpret_cast<const std::uint64_t*>(bytes.data() + 32);
  const auto count = *reinterpret_cast<const std::uint16_t*>(bytes.data() + 56);
  constexpr std::size_t kHeader = 56;
  std::size_t dynamic = 0, note = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto type = *reinterpret_cast<const std::uint32_t*>(bytes.data() + table + i * kHeader);
    if (type == 2) dynamic = table + i * kHeader;
    if (type == 0x6474e550) note = table + i * kHeader;  // of the exception tables
  }
  ASSERT_NE(dynamic, 0u);
  ASSERT_NE(note, 0u);
  std::memcpy(bytes.data() + note, bytes.data() + dynamic, kHeader);
  EXPECT_THAT(refusal_of_bytes(bytes), HasSubstr("it has two dynamic sections"));
}

TEST_F(PreflightTest, TakesPathsOfTheLibrarysOwn) {
  const auto facts = read_library(testing_plugin("origin_run_path"));
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  EXPECT_THAT(facts->run_paths, ::testing::ElementsAre("$ORIGIN/../lib", "/opt/acme/lib"));
  EXPECT_TRUE(facts->has_rpath);
}

TEST_F(PreflightTest, RefusesWhatEverybodyMayWrite) {
  const std::string path = folder_.file("libbackplane_good.so");
  write_file(path, read_file(testing_plugin("good")));
  ::chmod(path.c_str(), 0755);
  EXPECT_TRUE(preflight(path).ok());
  ::chmod(path.c_str(), 0666);
  EXPECT_THAT(refusal_of(path), HasSubstr("everybody may write to it; chmod o-w it"));
  ::setenv("BACKPLANE_WRITABLE_PLUGINS", "1", 1);
  EXPECT_TRUE(preflight(path).ok());
  ::unsetenv("BACKPLANE_WRITABLE_PLUGINS");
  ::chmod(path.c_str(), 0755);
  ::chmod(folder_.path().c_str(), 0777);
  EXPECT_THAT(refusal_of(path), HasSubstr("put another file in its place, as the folder"));
  ::chmod(folder_.path().c_str(), 01777);  // as /tmp: only owners remove files
  EXPECT_TRUE(preflight(path).ok());
  // The folder that a link leads to.
  ::chmod(folder_.path().c_str(), 0777);
  TempFolder other;
  const std::string link = other.file("libbackplane_good.so");
  ASSERT_EQ(::symlink(path.c_str(), link.c_str()), 0);
  EXPECT_THAT(refusal_of(link), HasSubstr("put another file in its place"));
}

TEST_F(PreflightTest, ReadsFacts) {
  const auto facts = read_library(testing_plugin("good"));
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  EXPECT_THAT(facts->exports, ::testing::Contains(BP_ENTRY_NAME));
  EXPECT_THAT(facts->needed, ::testing::Contains(HasSubstr("libc.so")));
  EXPECT_TRUE(facts->unique.empty());
  EXPECT_FALSE(facts->has_rpath);
}

TEST_F(PreflightTest, RefusesByContent) {
  const std::pair<const char*, const char*> cases[] = {
      {"no_entry", "exports no function 'backplane_plugin_negotiate'"},
      {"entry_is_data", "'backplane_plugin_negotiate' is data; expected a function"},
      {"no_note", "has no Backplane note"},
      {"executable_stack", "executable stack"},
      {"needs_torch", "it needs 'libtorch_fake.so'"},
      {"name", "its note names it '../evil'"},
  };
  for (const auto& [name, text] : cases) {
    EXPECT_THAT(refusal_of(testing_plugin(std::string("broken_") + name)), HasSubstr(text));
  }
}

}  // namespace
}  // namespace backplane::runtime
