#include "core/base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace backplane {
namespace {

// Another thread may be inside of log() at that time; the child has no such thread to let go.
TEST(Log, AChildOfForkCanLog) {
  const int before = ::dup(STDERR_FILENO), nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(::dup2(nowhere, STDERR_FILENO), 0);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) log(LogLevel::kError, "from a thread");
  });
  int hung = 0;
  for (int i = 0; i < 200 && hung == 0; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(5);
      log(LogLevel::kError, "from a child");
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    if (!WIFEXITED(status)) ++hung;
  }
  stop = true;
  other.join();
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  ::close(nowhere);
  EXPECT_EQ(hung, 0);
}

TEST(Log, AnUnknownTopicIsTold) {
  EXPECT_EQ(describe_unknown_topics("graph,plan,,all"), "");
  const std::string told = describe_unknown_topics("grahp,plan");
  EXPECT_TRUE(told.starts_with("BACKPLANE_LOG asks for 'grahp', which is no topic")) << told;
  EXPECT_NE(told.find("graph"), std::string::npos);
}

}  // namespace
}  // namespace backplane
