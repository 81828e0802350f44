// What holds of a frame before each instruction, whatever way control took there.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cpython/bytecode/code.h"

namespace backplane::cpython {

// By local variable, cell and free variable, as in the code object.
using LocalSet = std::vector<bool>;

// Those that may be read before they are set again, by instruction.
std::vector<LocalSet> find_live_locals(const Code& code, std::size_t local_count);

// Those that have a value on every way, and on some way, by instruction. `at_start`: the arguments.
struct BoundLocals {
  std::vector<LocalSet> always, sometimes;
};
BoundLocals find_bound_locals(const Code& code, const LocalSet& at_start);

// Slots of the value stack that hold NULL, deepest first. kEither: CPython decides at run time.
enum class Slot : std::uint8_t { kValue, kNull, kEither };
// Empty where control cannot come, as for a stack without values.
std::vector<std::vector<Slot>> find_slots(const Code& code);
// The stack behind the instruction; `jumped`: on the way to its target.
std::vector<Slot> slots_after(const Instruction& instruction, std::vector<Slot> before,
                              bool jumped);

}  // namespace backplane::cpython
