#include "core/runtime/plugin/plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <array>
#include <filesystem>
#include <thread>

#include "core/runtime/host/disk_cache.h"
#include "core/runtime/host/error.h"
#include "core/runtime/host/process_state.h"
#include "core/runtime/plugin/device.h"
#include "core/runtime/testing/files.h"

namespace backplane::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_files::read_file;
using testing_files::testing_plugin;

std::unique_ptr<Plugin> load(std::string_view name) {
  Result<std::unique_ptr<Plugin>> plugin = Plugin::load(testing_plugin(name));
  EXPECT_TRUE(plugin.ok()) << plugin.status().message();
  return plugin.ok() ? std::move(*plugin) : nullptr;
}

// Loads, opens, copies in and out: what one broken plugin must not take from another.
void expect_good_plugin_works(std::string_view name = "good") {
  const std::unique_ptr<Plugin> plugin = load(name);
  ASSERT_NE(plugin, nullptr);
  Result<Device*> opened = plugin->device(0);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Device& device = **opened;
  Result<DeviceBuffer> buffer = device.allocate(256);
  ASSERT_TRUE(buffer.ok()) << buffer.status().message();
  std::array<char, 100> out{}, in{};
  out.fill('x');
  const bp_range range{buffer->get(), nullptr, 16, out.size()};
  ASSERT_TRUE(device.copy_to_device(out.data(), range, CopyCause::kInput).ok());
  ASSERT_TRUE(device.copy_from_device(range, in.data(), CopyCause::kOutput).ok());
  EXPECT_EQ(in, out);
}

TEST(Plugin, LoadsTheGoodOne) {
  const std::unique_ptr<Plugin> plugin = load("good");
  ASSERT_NE(plugin, nullptr);
  EXPECT_EQ(plugin->name(), "good");
  EXPECT_EQ(plugin->abi_version(), BP_ABI_VERSION);
  EXPECT_EQ(plugin->sha256(), sha256_hex(read_file(testing_plugin("good"))));
  EXPECT_EQ(plugin->device_count(), 1u);
  EXPECT_EQ(plugin->api().struct_size, sizeof(bp_plugin_api));
  EXPECT_NE(plugin->handle(), nullptr);
  const Result<Device*> absent = plugin->device(1);
  ASSERT_FALSE(absent.ok());
  EXPECT_THAT(absent.status().message(), HasSubstr("Plugin 'good' has 1 device; there is no"));
}

TEST(Plugin, LoadsStrippedAndOldStyleLibraries) {
  expect_good_plugin_works("good_stripped");
  expect_good_plugin_works("good_sysv_hash");
}

struct Fault {
  const char* name;
  std::vector<const char*> texts;  // of the refusal
};
std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

class RefusedPlugin : public ::testing::TestWithParam<Fault> {};

TEST_P(RefusedPlugin, SaysWhyAndHidesNoOther) {
  const std::string path = testing_plugin(std::string("broken_") + GetParam().name);
  const Result<std::unique_ptr<Plugin>> plugin = Plugin::load(path);
  ASSERT_FALSE(plugin.ok());
  const std::string& message = plugin.status().message();
  EXPECT_THAT(message, AllOf(HasSubstr(path), HasSubstr("was refused: ")));
  for (const char* text : GetParam().texts) EXPECT_THAT(message, HasSubstr(text));
  expect_good_plugin_works();
}

INSTANTIATE_TEST_SUITE_P(
    Faults, RefusedPlugin,
    ::testing::Values(
        Fault{"no_entry", {"exports no function"}},
        Fault{"entry_is_data", {"is data; expected a function"}},
        Fault{"no_note", {"has no Backplane note", "BP_NOTE"}},
        Fault{"note_disagrees", {"its note says ABI 0.3, its negotiation 0.3 to 0.4"}},
        Fault{"abi_newer", {"ABI 0.4 to 0.5, this host speaks 0.2 to 0.3; update the host"}},
        Fault{"abi_older",
              {"ABI 0.0, this host speaks 0.2 to 0.3; get a newer build of the plugin"}},
        Fault{"answers_version", {"ABI 0.4 to 0.6, this host speaks 0.2 to 0.3; update the host"}},
        Fault{"required_null", {"lacks the required entries copy, execute"}},
        Fault{"entry_in_libc", {"its entry shutdown points into ", "is a function of the plugin"}},
        Fault{"entry_in_data", {"its entry shutdown points into the plugin's data"}},
        Fault{"size_zero", {"struct_size 0; expected "}},
        Fault{"size_huge", {"struct_size 1099511627776; expected "}},
        Fault{"size_past_mapping", {"claims 60000 bytes", "beyond the library's memory"}},
        Fault{"small_table", {"struct_size ", "(version 0.2)"}},
        Fault{"half_group",
              {"sets stream_create but not stream_release, event_create", "all or none"}},
        Fault{"throws", {"threw an exception (vendor runtime is missing)"}},
        Fault{"throws_unknown", {"threw an exception of unknown type"}},
        Fault{"sanitizer", {"it is built with sanitizer '", "build both alike"}},
        Fault{"undefined_symbol",
              {"the loader says: ", "undefined symbol: backplane_symbol_that_nobody_defines"}},
        Fault{"chosen_outside", {"chose ABI 0.7, expected 0.3"}},
        Fault{"no_table", {"negotiated a version and gave no table"}},
        Fault{"table_on_heap", {"does not lie in the library itself"}},
        Fault{"fails_with_text", {"negotiation failed; it says: driver 12 is too old"}},
        Fault{"silent", {"its negotiation failed"}},
        Fault{"executable_stack", {"executable stack", "noexecstack"}},
        Fault{"needs_torch", {"never to torch or Python"}},
        Fault{"unknown_flag", {"flag in bits 32 to 63"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Plugin, RestoresTheFloatingPointStateThatAConstructorChanged) {
  const FpControl before = read_fp_control();
  ::testing::internal::CaptureStderr();
  const std::unique_ptr<Plugin> plugin = load("broken_sets_ftz");
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_NE(plugin, nullptr);
  EXPECT_EQ(read_fp_control(), before);
#if defined(__x86_64__)
  EXPECT_THAT(log, AllOf(HasSubstr("broken_sets_ftz"), HasSubstr("floating-point control state")));
  volatile float denormal = 1e-40f;
  EXPECT_GT(denormal * 1.0f, 0.0f);
#endif
}

TEST(Plugin, RestoresSignalHandlersAndUmask) {
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR1, nullptr, &before), 0);
  const mode_t mask = ::umask(022);
  ::testing::internal::CaptureStderr();
  const std::filesystem::path folder = std::filesystem::current_path();
  const std::unique_ptr<Plugin> plugin = load("broken_changes_process");
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      log, HasSubstr("changed the handler of SIGUSR1, the umask, the working directory; what was "
                     "there before was put back"));
  EXPECT_EQ(std::filesystem::current_path(), folder);
  struct sigaction after {};
  ASSERT_EQ(::sigaction(SIGUSR1, nullptr, &after), 0);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
  EXPECT_EQ(::umask(mask), 022u);
}

TEST(Plugin, DevicesThatCannotBeOpenedAreErrors) {
  const std::unique_ptr<Plugin> silent = load("broken_describes_nothing");
  ASSERT_NE(silent, nullptr);
  EXPECT_THAT(silent->device(0).status().message(),
              HasSubstr("broken_describes_nothing:0: device_describe answered struct_size 0"));
  const std::unique_ptr<Plugin> empty = load("broken_opens_nothing");
  ASSERT_NE(empty, nullptr);
  EXPECT_THAT(empty->device(0).status().message(),
              HasSubstr("broken_opens_nothing:0: device_open succeeded without a device"));
  EXPECT_FALSE(empty->device(0).ok());  // tried again, not stuck
}

TEST(Plugin, OpensADeviceOnceForAllThreads) {
  const std::unique_ptr<Plugin> plugin = load("good");
  ASSERT_NE(plugin, nullptr);
  std::array<Device*, 4> devices{};
  std::vector<std::thread> threads;
  for (Device*& device : devices) {
    threads.emplace_back([&] {
      const Result<Device*> opened = plugin->device(0);
      device = opened.ok() ? *opened : nullptr;
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_NE(devices[0], nullptr);
  for (const Device* device : devices) EXPECT_EQ(device, devices[0]);
}

TEST(Plugin, AForkedChildGetsAnError) {
  const std::unique_ptr<Plugin> plugin = load("good");
  ASSERT_NE(plugin, nullptr);
  Result<Device*> opened = plugin->device(0);
  ASSERT_TRUE(opened.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    bool right = !plugin->device(0).ok();
    const Result<DeviceBuffer> buffer = (*opened)->allocate(16);
    right = right && buffer.status().code() == Code::kUnsupported &&
            buffer.status().message().find("child of fork()") != std::string::npos;
    // One that the child loads itself works.
    const Result<std::unique_ptr<Plugin>> own = Plugin::load(testing_plugin("good_stripped"));
    right = right && own.ok() && (*own)->device(0).ok();
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace backplane::runtime
