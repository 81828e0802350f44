// For tests written with GoogleTest: answers of a plugin as assertions that show its error's text.
#pragma once

#include <gtest/gtest.h>
#include <backplane/sdk/testing/session.hpp>

namespace backplane::sdk::testing {

// EXPECT_TRUE(succeeds(session.execute(...)))
inline ::testing::AssertionResult succeeds(bp_error* error) {
  const Outcome outcome = Outcome::take(error);
  if (outcome.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "code " << outcome.code << ": " << outcome.message;
}
inline ::testing::AssertionResult fails_with(bp_code code, bp_error* error) {
  const Outcome outcome = Outcome::take(error);
  if (outcome.code == code) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "code " << outcome.code << " where " << code << " is expected: " << outcome.message;
}

}  // namespace backplane::sdk::testing
