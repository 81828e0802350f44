// One call of a Python program, captured: the graph of its tensor operators, what must hold for the
// graph to be used again, and how its result is put together.
#pragma once

#include <Python.h>
//
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/torch/capture/recipe.h"
#include "core/torch/guards/guard_program.h"
#include "core/torch/record/recorder.h"

namespace backplane::capture {

struct Captured {
  std::unique_ptr<guards::GuardProgram> guards;
  record::Recorded recorded;
  std::vector<SourceId> inputs;    // of the graph, in order
  std::vector<bool> is_parameter;  // by input
  Recipe recipe;
  std::uint64_t instruction_count = 0, frame_count = 0;
  std::int64_t capture_ns = 0;
};

struct CaptureOptions {
  std::string name = "graph";
  bool with_backward = true;
};

// Calls `target` with the arguments once, with tensors that have no memory; nothing outside
// changes. Needs the GIL. kUnsupported, with the reason and the program's line, for what is not
// captured; kCancelled, with the Python error set, where the call was interrupted.
Result<std::unique_ptr<Captured>> capture(PyObject* target, const guards::CallArguments& call,
                                          const CaptureOptions& options);

}  // namespace backplane::capture
