// One call of a Python program, captured: the graph of its tensor operators, what must hold for the
// graph to be used again, and how its result is put together.
#pragma once

#include <Python.h>
//
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/status.h"
#include "core/torch/guards/guard_program.h"
#include "core/torch/interpret/interpreter.h"
#include "core/torch/record/recorder.h"
#include "core/torch/world/recipe.h"

namespace backplane::capture {

struct Captured {
  std::unique_ptr<guards::GuardProgram> guards;
  record::Recorded recorded;
  std::vector<SourceId> inputs;    // of the graph, in order
  std::vector<bool> is_parameter;  // by input
  bool has_checkpointed = false;
  Recipe recipe;
  bool gives_state = false;  // the recipe makes the tuple of `take_state`
  std::uint64_t instruction_count = 0, frame_count = 0;
  std::int64_t capture_ns = 0;
};

// What the program is handed in place of a call's own values, to see what other sizes make of it.
struct Invented {
  std::unordered_map<const c10::TensorImpl*, at::Tensor> tensors;  // by the real one
  std::unordered_map<std::size_t, std::int64_t> numbers;           // by argument of the call
};

struct CaptureOptions {
  std::string name = "graph";
  bool with_backward = true;
  // `target` is a function whose code runs as `frame_code` in the call, whose values are all locals
  // that its frame starts with, and last the function itself.
  PyCodeObject* frame_code = nullptr;
  // Of a capture that is only looked at: guards do not hold for what it has recorded.
  const Invented* invented = nullptr;
  // Not 0: the frame ends before this step.
  std::uint64_t break_step = 0;
  // Where the frame has ended early or has effects outside: what the recipe's tuple is made of.
  // `returned`: the frame's result, borrowed; null at a break.
  std::function<Result<std::vector<cpython::Ref>>(Interpreter&, PyObject* returned)> take_state;
};

// Where a capture ended, and what it had read by then: once that is otherwise, the next one may get
// further.
struct Stop {
  StopPoint point;
  std::unique_ptr<guards::GuardProgram> read;
};

// kUnsupported where nothing is captured on this thread now, whatever it is.
Status check_interpreter();

// Calls `target` with the arguments once, with tensors that have no memory; nothing outside
// changes. Needs the GIL. kUnsupported, with the reason and the program's line, for what is not
// captured; kCancelled, with the Python error set, where the call was interrupted.
Result<std::unique_ptr<Captured>> capture(PyObject* target, const guards::CallArguments& call,
                                          const CaptureOptions& options, Stop* out_stop = nullptr);

}  // namespace backplane::capture
