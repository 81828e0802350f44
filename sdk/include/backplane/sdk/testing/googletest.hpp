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

// relu(x w) of any number of rows, at two sizes, with streams where there are some and without.
inline void expect_runs_a_graph(Session& session) {
  GraphBuilder g;
  g.dim_class(1, 64, 8);
  const auto x = g.input(kFloat32, {-1, 2}, {2, 1}), w = g.input(kFloat32, {2, 2});
  const auto y = g.value(kFloat32, {-1, 2}, {2, 1}), z = g.value(kFloat32, {-1, 2}, {2, 1});
  g.node("aten.mm", {x, w}, {y});
  g.node("aten.relu", {y}, {z});
  g.output(z);
  HostTensor turn(kFloat32, {2, 2});
  turn.set_values(Floats{0, 1, 1, 0});
  for (const std::int64_t rows : {3, 5}) {
    HostTensor in(kFloat32, {rows, 2}), want(kFloat32, {rows, 2});
    in.set_values(Floats{1, -2});
    want.set_values(Floats{0, 1});
    for (const bool streamed : {false, true}) {
      if (streamed && !session.has_streams()) continue;
      const auto results =
          session.run(g.graph(), {in, turn}, {.dims = {rows}, .streamed = streamed});
      EXPECT_EQ(results.at(0).values(), want.values());
    }
  }
}

}  // namespace backplane::sdk::testing
