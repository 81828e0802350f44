// A frame that stops in the middle: its code up to there in another form (modified code), and the
// rest as functions of their own (resume code). Resume code is always made from the original code,
// so that ways that come together again share one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/cpython/bytecode/code.h"
#include "core/cpython/bytecode/locals_flow.h"

namespace backplane::cpython {

// A code object as its programmer wrote it, with what is asked about it again and again.
struct OriginalCode {
  static Result<OriginalCode> make(PyCodeObject* code);

  PyCodeObject* object() const { return reinterpret_cast<PyCodeObject*>(held.get()); }
  bool is_cell(std::size_t local) const;  // of its own, not free
  bool is_free(std::size_t local) const;

  Ref held;
  Code code;
  std::vector<LocalSet> live;
  // Zero-argument super() reads the first argument where it lies.
  bool keeps_first_argument = false;
};

// The code of a frame: the original, or resume code of it.
struct FrameCode {
  static FrameCode of(const OriginalCode& original);

  PyCodeObject* object() const { return reinterpret_cast<PyCodeObject*>(held.get()); }

  Ref held;
  std::int32_t base = 0;      // where the original's first instruction stands
  std::vector<int> local_of;  // by local of the original: its own
  // By argument: a local of the original, or -1 - slot of the value stack.
  std::vector<int> arguments;
  bool is_resume = false;  // cells come as arguments, made already
};

// What a frame has before an instruction of the original.
struct FrameLayout {
  std::vector<Slot> slots;
  LocalSet bound;
  LocalSet kept = {};  // bound, and to live on though nothing reads them again; may be empty
};

// Its names are the original's: programs look at frames, logs and warnings print them.
// kUnsupported where such a frame cannot be made.
Result<FrameCode> make_resume_code(const OriginalCode& original, std::int32_t target,
                                   const FrameLayout& layout);

// One more instruction of modified code. Its argument is `constant` or `name` where one is set.
struct Emitted {
  int opcode = 0;
  int argument = 0;
  Ref constant, name;
};

// What stands in modified code in place of the instructions before the one that cannot be captured.
struct ModifiedPrefix {
  std::vector<Emitted> emitted;
  std::vector<int> stored;  // locals of the original, set from the stack behind `emitted`
  // Behind those the value stack lies there, without the NULLs.
};

// Where modified code goes on: a callable, and the arguments that it takes, as FrameCode has them.
struct ResumePoint {
  Ref callable;
  std::vector<int> arguments;
};
using MakeResumePoint =
    std::function<Result<ResumePoint>(std::int32_t target, const FrameLayout& layout)>;

struct BreakPlan {
  std::int32_t instruction = 0;  // of the original
  FrameLayout layout;            // before it
  // Without one, the frame's own instructions run up to the break.
  const ModifiedPrefix* prefix = nullptr;
  MakeResumePoint make_resume_point;
};

// Instructions that belong together: a call starts with its keyword names.
std::int32_t first_of_break(const Code& code, std::int32_t instruction);
// Whether a frame may stop before it and go on behind it.
bool can_break_at(const Code& code, std::int32_t instruction);

// Prefix, the breaking instruction, calls of resume points. With a prefix it takes all arguments by
// position.
Result<Ref> make_broken_code(const OriginalCode& original, const FrameCode& frame,
                             const BreakPlan& plan);

// `emitted` alone, which ends by returning. Takes all arguments by position.
Result<Ref> make_straight_code(const FrameCode& frame, const std::vector<Emitted>& emitted);

// The same code, which takes all arguments by position, as frames have them: a tuple for *args. The
// code itself where it does that anyway.
Result<Ref> take_positions(PyCodeObject* code);

// A call of a constant with the frame's arguments.
std::vector<Emitted> call_with_arguments(const OriginalCode& original, const FrameCode& frame,
                                         PyObject* callable);

}  // namespace backplane::cpython
