// What the rest of this room asks about an opcode. One source file per CPython version answers.
#pragma once

#include <string_view>
#include <vector>

namespace backplane::cpython {

enum class Jump { kNone, kForward, kBackward };

// Code units of inline cache behind the instruction.
int cache_count(int opcode);
Jump jump_of(int opcode);
// Control never reaches the next instruction.
bool ends_flow(int opcode);
// The argument is an index into the frame's local variables, cells and free variables.
bool uses_local(int opcode);
// It moves a local variable, or NULL for none, to the stack.
bool clears_local(int opcode);
// The same jump in the other direction, or -1 where this version has none.
int reversed_jump(int opcode);
// The conditional jump with the opposite condition, or -1.
int negated_jump(int opcode);
// What a call with arguments on the stack is made of, after its keyword names.
const std::vector<int>& call_opcodes();
// It leaves a method and its object on the stack, or NULL and another attribute.
bool loads_method(int opcode, int argument);
// The same load, of the attribute alone, and how many values it takes from the stack.
struct AttributeLoad {
  int opcode = 0, argument = 0, taken = 0;
};
AttributeLoad plain_load(int opcode, int argument);
// Of an instruction that loads a global or an attribute: its name's place in co_names.
int name_index(int opcode, int argument);
// Py_LT and such, of a COMPARE_OP.
int comparison_of(int argument);
// Instructions at the target of a FOR_ITER that CPython jumps over when the loop ends.
int skipped_at_loop_end();
// Whether neighbours with one source position share an entry of the line table.
bool merges_locations();
// "3.11": the version this was compiled for.
std::string_view python_version();

}  // namespace backplane::cpython
