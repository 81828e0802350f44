#include "core/runtime/host/process_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <clocale>
#include <filesystem>
#include <thread>

namespace backplane::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr mode_t kBefore = 022, kAfter = 077;

void change_everything() {
  std::signal(SIGUSR1, SIG_IGN);
  std::setlocale(LC_ALL, "C.UTF-8");
  ::umask(kAfter);
  ASSERT_EQ(::chdir("/"), 0);
}

// Is whatever it may be afterwards as it was before.
class ProcessStateTest : public ::testing::Test {
 protected:
  ~ProcessStateTest() override { reset(); }
  void SetUp() override { reset(); }
  void reset() {
    std::signal(SIGUSR1, SIG_DFL);
    std::setlocale(LC_ALL, "C");
    ::umask(kBefore);
    std::filesystem::current_path(folder_);
  }
  static bool is_changed() {
    struct sigaction now {};
    ::sigaction(SIGUSR1, nullptr, &now);
    const mode_t mask = ::umask(kBefore);
    ::umask(mask);
    const bool is_one = now.sa_handler == SIG_IGN;
    EXPECT_EQ(std::string(std::setlocale(LC_ALL, nullptr)) == "C.UTF-8", is_one);
    EXPECT_EQ(mask == kAfter, is_one);
    EXPECT_EQ(std::filesystem::current_path() == "/", is_one);
    return is_one;
  }

 private:
  const std::filesystem::path folder_ = std::filesystem::current_path();
};

TEST_F(ProcessStateTest, WhatTheCallChangedIsUndoneWhileOtherThreadsWait) {
  std::atomic<bool> ends{false};
  std::thread idle([&] { ends.wait(false); });
  bool is_undone = false;
  for (int i = 0; i < 1000 && !is_undone; ++i) {  // until that thread waits
    reset();
    {
      const ProcessStateGuard guard("the plugin's call");
      change_everything();
    }
    is_undone = !is_changed();
    if (!is_undone) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(is_undone);
  ends = true;
  ends.notify_all();
  idle.join();
}

TEST_F(ProcessStateTest, WhatAnotherThreadChangedStays) {
  ::testing::internal::CaptureStderr();
  {
    const ProcessStateGuard guard("a call beside a thread that ends");
    std::thread(change_everything).join();
  }
  EXPECT_TRUE(is_changed());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("a thread that ends, in which other code of the program ran as well"),
                    HasSubstr("the handler of SIGUSR1"), HasSubstr("the umask"),
                    HasSubstr("the working directory"), HasSubstr("that stays"),
                    Not(HasSubstr("was put back"))));
}

TEST_F(ProcessStateTest, WhatAThreadChangedThatStillRunsStays) {
  std::atomic<bool> begins{false}, is_done{false}, ends{false};
  std::thread busy([&] {
    while (!begins) {
    }
    change_everything();
    is_done = true;
    while (!ends) {
    }
  });
  {
    const ProcessStateGuard guard("a call beside a thread that runs");
    begins = true;
    while (!is_done) {
    }
  }
  EXPECT_TRUE(is_changed());
  ends = true;
  busy.join();
}

TEST_F(ProcessStateTest, WhatTheProgramChangedInsideOfTheCallStays) {
  {
    const ProcessStateGuard guard("a call that asks the program");
    note_program_runs();
    change_everything();
  }
  EXPECT_TRUE(is_changed());
}

}  // namespace
}  // namespace backplane::runtime
