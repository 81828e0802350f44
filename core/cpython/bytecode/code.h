// A code object taken apart: instructions with labels instead of offsets, ready to be rewritten.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/cpython/bytecode/py_ref.h"
#include "core/cpython/bytecode/tables.h"

namespace backplane::cpython {

inline constexpr std::int32_t kNoTarget = -1;

struct Instruction {
  int opcode = 0;
  int argument = 0;                 // of a jump: chosen by the assembler
  std::int32_t target = kNoTarget;  // of a jump: index of an instruction
  Location location;
  std::int32_t offset = 0;  // code units in the code it was decoded from, behind EXTENDED_ARGs
};

// Instructions [begin, end) are covered by the handler at `target`.
struct ExceptionRange {
  std::int32_t begin = 0, end = 0, target = 0;
  int depth = 0;
  bool push_lasti = false;
};

struct Code {
  std::vector<Instruction> instructions;
  std::vector<ExceptionRange> exceptions;  // ordered by `begin`, not overlapping
  int first_line = 0;
};

// Without specialisation and instrumentation. kDataCorrupt for bytes that are no bytecode.
Result<Code> decode(PyCodeObject* code);

// Depth of the value stack before each instruction; -1 where control cannot come.
struct StackDepths {
  std::vector<int> before;
  int maximum = 0;
};
Result<StackDepths> find_stack_depths(const Code& code);

// What a code object is made of besides its instructions. Borrows from `like` what is not set.
struct CodeShape {
  explicit CodeShape(PyCodeObject* like);

  Ref name, qualified_name, constants, names;
  Ref local_names;          // tuple of str: locals, cells, free variables
  std::string local_kinds;  // one byte each
  int argument_count = 0, positional_only_count = 0, keyword_only_count = 0;
  int flags = 0;
  int minimal_stack_size = 0;
  PyCodeObject* like = nullptr;  // for the file name; outlives the shape
};

// A new code object, checked by CPython. Changes `code`: directions of jumps.
Result<Ref> assemble(Code code, const CodeShape& shape);

// Moves the Python error that is set into a Status.
Status take_python_error(const char* what);

}  // namespace backplane::cpython
