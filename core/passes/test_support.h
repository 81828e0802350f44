// For the tests beside the passes: text in, pipeline, text out.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/ir/text.h"
#include "core/passes/pass.h"

namespace backplane::passes {

inline std::string run_text(std::string_view pipeline, std::string_view before) {
  auto graph = ir::parse(before);
  if (!graph.ok()) return graph.status().to_string();
  const Status status = run_pipeline(*graph, pipeline);
  return status.ok() ? ir::print(*graph) : status.to_string();
}

inline void expect_unchanged(std::string_view pipeline, std::string_view text) {
  EXPECT_EQ(run_text(pipeline, text), text);
}

}  // namespace backplane::passes
