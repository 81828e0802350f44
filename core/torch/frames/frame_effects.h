// Effects of a captured frame as instructions of its modified code.
#pragma once

#include <Python.h>
//
#include <cstddef>
#include <vector>

#include "core/base/status.h"
#include "core/cpython/bytecode/rewrite.h"
#include "core/torch/frames/frame_callable.h"
#include "core/torch/guards/source.h"
#include "core/torch/world/autocast.h"
#include "core/torch/world/effects.h"

namespace backplane::call {

// Raises what a hook of saved tensors has raised: behind what the program writes before the last of
// its operators, at which the hook may have stopped it, and before what it writes behind that.
struct HookStop {
  std::size_t operators = 0;  // of the program
  FrameFunction raise;        // empty: no hook is called
};

// Appends what the instructions find on the stack, the first on top, and the instructions.
// `globals`: of the frame; `sources`: of the entry's guards.
Status emit_effects(const capture::Effects& effects, const HookStop& stop, PyObject* globals,
                    guards::Sources& sources, std::vector<cpython::Ref>& state,
                    std::vector<cpython::Emitted>& out);

// Appends what sets autocast on the thread.
Status emit_autocast(const capture::AutocastState& autocast, std::vector<cpython::Emitted>& out);

}  // namespace backplane::call
