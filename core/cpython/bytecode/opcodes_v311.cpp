#include <Python.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000

#include <opcode.h>

#include "core/cpython/bytecode/opcodes.h"

namespace backplane::cpython {

int cache_count(int opcode) {
  switch (opcode) {
    case STORE_SUBSCR:
    case UNPACK_SEQUENCE:
    case BINARY_OP:
    case PRECALL:
      return 1;
    case COMPARE_OP:
      return 2;
    case BINARY_SUBSCR:
    case STORE_ATTR:
    case LOAD_ATTR:
    case CALL:
      return 4;
    case LOAD_GLOBAL:
      return 5;
    case LOAD_METHOD:
      return 10;
    default:
      return 0;
  }
}

Jump jump_of(int opcode) {
  switch (opcode) {
    case FOR_ITER:
    case SEND:
    case JUMP_FORWARD:
    case JUMP_IF_FALSE_OR_POP:
    case JUMP_IF_TRUE_OR_POP:
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_FORWARD_IF_NONE:
    case POP_JUMP_FORWARD_IF_NOT_NONE:
      return Jump::kForward;
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
      return Jump::kBackward;
    default:
      return Jump::kNone;
  }
}

bool ends_flow(int opcode) {
  switch (opcode) {
    case RETURN_VALUE:
    case RAISE_VARARGS:
    case RERAISE:
    case JUMP_FORWARD:
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
      return true;
    default:
      return false;
  }
}

bool uses_local(int opcode) {
  switch (opcode) {
    case LOAD_FAST:
    case STORE_FAST:
    case DELETE_FAST:
    case MAKE_CELL:
    case LOAD_CLOSURE:
    case LOAD_DEREF:
    case STORE_DEREF:
    case DELETE_DEREF:
    case LOAD_CLASSDEREF:
      return true;
    default:
      return false;
  }
}

bool clears_local(int) { return false; }

int reversed_jump(int opcode) {
  switch (opcode) {
    case JUMP_FORWARD:
      return JUMP_BACKWARD;
    case JUMP_BACKWARD:
      return JUMP_FORWARD;
    case POP_JUMP_FORWARD_IF_FALSE:
      return POP_JUMP_BACKWARD_IF_FALSE;
    case POP_JUMP_FORWARD_IF_TRUE:
      return POP_JUMP_BACKWARD_IF_TRUE;
    case POP_JUMP_FORWARD_IF_NONE:
      return POP_JUMP_BACKWARD_IF_NONE;
    case POP_JUMP_FORWARD_IF_NOT_NONE:
      return POP_JUMP_BACKWARD_IF_NOT_NONE;
    case POP_JUMP_BACKWARD_IF_FALSE:
      return POP_JUMP_FORWARD_IF_FALSE;
    case POP_JUMP_BACKWARD_IF_TRUE:
      return POP_JUMP_FORWARD_IF_TRUE;
    case POP_JUMP_BACKWARD_IF_NONE:
      return POP_JUMP_FORWARD_IF_NONE;
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
      return POP_JUMP_FORWARD_IF_NOT_NONE;
    default:
      return -1;
  }
}

int negated_jump(int) { return -1; }

const std::vector<int>& call_opcodes() {
  static const std::vector<int> opcodes{PRECALL, CALL};
  return opcodes;
}

bool loads_method(int opcode, int) { return opcode == LOAD_METHOD; }

AttributeLoad plain_load(int, int argument) { return {LOAD_ATTR, argument, 1}; }

int name_index(int opcode, int argument) {
  return opcode == LOAD_GLOBAL ? argument >> 1 : argument;
}

int comparison_of(int argument) { return argument; }

int skipped_at_loop_end() { return 0; }

bool merges_locations() { return false; }

std::string_view python_version() { return "3.11"; }

}  // namespace backplane::cpython

#endif
