#include "core/runtime/plugin/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "core/runtime/host/host_services.h"
#include "core/runtime/testing/files.h"

namespace backplane::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_files::read_file;
using testing_files::TempFolder;

std::uint64_t begin_named(std::string_view name) {
  return host_api().span_begin(host_api().host, {name.data(), name.size()});
}
void end_named(std::uint64_t span) { host_api().span_end(host_api().host, span); }

class TraceTest : public ::testing::Test {
 protected:
  void SetUp() override { start_trace(); }
  void TearDown() override {
    stop_trace();
    clear_trace();
  }
  TempFolder folder_;
};

TEST_F(TraceTest, NamesAreTextOfJson) {
  end_named(begin_named("a \"b\" \\ c\n"));
  const std::string path = folder_.file("trace.json");
  ASSERT_TRUE(write_trace(path));
  EXPECT_THAT(read_file(path), HasSubstr(R"("name":"a \"b\" \\ c\u000a"})"));
}

TEST_F(TraceTest, ASpanThatWasForgottenEndsNoOther) {
  const std::uint64_t old = begin_named("old");
  clear_trace();
  const std::uint64_t later = begin_named("later");
  end_named(old);
  EXPECT_THAT(trace_totals(), IsEmpty());
  end_named(later);
  ASSERT_EQ(trace_totals().size(), 1u);
  EXPECT_EQ(trace_totals()[0].name, "later");
}

// The handler that writes is of the process, so each is one of its own.
TEST_F(TraceTest, AChildOfForkLeavesTheFileToItsParent) {
  const std::string path = folder_.file("trace.json");
  const pid_t traced = ::fork();
  if (traced == 0) {
    ::setenv("BACKPLANE_TRACE", path.c_str(), 1);
    start_trace_from_environment();
    end_named(begin_named("of the parent"));
    const pid_t child = ::fork();
    if (child == 0) std::exit(0);
    ::waitpid(child, nullptr, 0);
    ::_exit(::access(path.c_str(), F_OK) == 0 ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(traced, &status, 0), traced);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace backplane::runtime
