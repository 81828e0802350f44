// Graphs in tests of GoogleTest: that they compile, and that a call gives the right numbers.
#pragma once

#include <gtest/gtest.h>

#include "core/runtime/testing/run_graph.h"

namespace backplane::runtime::testing_graph {

inline std::unique_ptr<CompiledGraph> must_compile(std::string_view text,
                                                   const std::vector<Device*>& devices,
                                                   const CompileOptions& options = {}) {
  for (const Device* device : devices) {
    if (device == nullptr) {
      ADD_FAILURE() << "a device is missing";
      return nullptr;
    }
  }
  auto compiled = compile(text, devices, options);
  EXPECT_TRUE(compiled.ok()) << compiled.status().message();
  return compiled.ok() ? std::move(*compiled) : nullptr;
}

inline void expect_right(CompiledGraph& compiled, const Classes& classes = {}, unsigned seed = 1) {
  Inputs inputs = Inputs::random(compiled.graph(), classes, seed);
  const auto expected = evaluate(compiled.graph(), inputs, classes);
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  const auto found = call(compiled, inputs, classes);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(*found, *expected);
}

}  // namespace backplane::runtime::testing_graph
