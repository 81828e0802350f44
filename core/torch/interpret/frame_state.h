// One frame while the interpreter runs it.
#pragma once

#include "core/torch/interpret/interpreter.h"

namespace backplane::capture {

// The value stack lies in CPython's own frame, behind its local variables. Values are owned.
struct FrameState {
  Interpreter& interpreter;
  World& world;
  PyThreadState* thread;
  cpython::RunningFrame& running;
  const cpython::FrameContent& content;
  const DecodedCode& code;
  PyObject** locals;
  PyObject** base;
  PyObject** top;                     // one behind the last value
  PyObject* keyword_names = nullptr;  // borrowed from the constants, for the next call
  std::size_t at = 0;                 // instruction
  bool is_root = false;

  void push(PyObject* owned) { *top++ = owned; }
  PyObject* pop() { return *--top; }
  cpython::Ref take() { return cpython::Ref::steal(*--top); }
  PyObject*& peek(int depth) { return *(top - depth); }  // 1: the last
  int depth() const { return static_cast<int>(top - base); }
  void drop_to(int depth);

  PyObject* constant(int index) const { return PyTuple_GET_ITEM(content.code->co_consts, index); }
  PyObject* name(int index) const { return PyTuple_GET_ITEM(content.code->co_names, index); }
  PyObject* local_name(int index) const {
    return PyTuple_GET_ITEM(content.code->co_localsplusnames, index);
  }
};

// What an instruction leaves the loop with.
enum class Flow { kNext, kJumped, kError, kReraise, kReturn, kYield };

// Groups of instructions. kNext with `out_handled` false: not of this group.
Flow run_stack_instruction(FrameState& state, const cpython::Instruction& it, bool& out_handled);
Flow run_object_instruction(FrameState& state, const cpython::Instruction& it, bool& out_handled);
Flow run_build_instruction(FrameState& state, const cpython::Instruction& it, bool& out_handled);
Flow run_call_instruction(FrameState& state, const cpython::Instruction& it, bool& out_handled);
Flow run_match_instruction(FrameState& state, const cpython::Instruction& it, bool& out_handled);
Flow run_exception_instruction(FrameState& state, const cpython::Instruction& it,
                               bool& out_handled);
// Those that not every version of CPython has.
Flow run_version_instruction(FrameState& state, const cpython::Instruction& it, bool& out_handled);

// What groups share. `owned` may be null, with an error set.
Flow push_result(FrameState& state, PyObject* owned);
Flow push_own(FrameState& state, PyObject* made);
Flow load_local(FrameState& state, int index);
Flow list_to_tuple(FrameState& state);
Flow unary(FrameState& state, PyObject* (*function)(PyObject*));
Flow jump(FrameState& state, const cpython::Instruction& it);
Flow jump_on_truth(FrameState& state, const cpython::Instruction& it, bool wanted, bool keeps);
Flow jump_on_none(FrameState& state, const cpython::Instruction& it, bool wanted);
// `out_result`: what the receiver below the value on the stack gave, or null with an error set.
PySendResult send(FrameState& state, PyObject*& out_result);

}  // namespace backplane::capture
