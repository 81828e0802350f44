#include <Python.h>

#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000

#include "core/cpython/frame/running_frame.h"

// 3.12 clears and pops a frame inside of its own loop by a function that it does not export.
namespace backplane::cpython {

struct RunningFrame::Link {};

bool can_run_frames() { return false; }

FrameContent content_of(_PyInterpreterFrame*) { return {}; }

RunningFrame::RunningFrame(PyThreadState* thread, _PyInterpreterFrame* frame)
    : thread_(thread), frame_(frame) {}

RunningFrame::~RunningFrame() = default;

void RunningFrame::set_position(int) {}
void RunningFrame::add_traceback() {}
void RunningFrame::suspend(int) {}
void RunningFrame::finish() {}

}  // namespace backplane::cpython

#endif
