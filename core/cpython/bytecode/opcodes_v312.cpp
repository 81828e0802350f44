#include <Python.h>

#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000

#include <opcode.h>

#include "core/cpython/bytecode/opcodes.h"

namespace backplane::cpython {

int cache_count(int opcode) {
  switch (opcode) {
    case BINARY_SUBSCR:
    case STORE_SUBSCR:
    case UNPACK_SEQUENCE:
    case FOR_ITER:
    case COMPARE_OP:
    case BINARY_OP:
    case SEND:
    case LOAD_SUPER_ATTR:
      return 1;
    case CALL:
      return 3;
    case STORE_ATTR:
    case LOAD_GLOBAL:
      return 4;
    case LOAD_ATTR:
      return 9;
    default:
      return 0;
  }
}

Jump jump_of(int opcode) {
  switch (opcode) {
    case FOR_ITER:
    case SEND:
    case JUMP_FORWARD:
    case POP_JUMP_IF_FALSE:
    case POP_JUMP_IF_TRUE:
    case POP_JUMP_IF_NONE:
    case POP_JUMP_IF_NOT_NONE:
      return Jump::kForward;
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
      return Jump::kBackward;
    default:
      return Jump::kNone;
  }
}

bool ends_flow(int opcode) {
  switch (opcode) {
    case RETURN_VALUE:
    case RETURN_CONST:
    case RAISE_VARARGS:
    case RERAISE:
    case INTERPRETER_EXIT:
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
    case LOAD_FAST_CHECK:
    case LOAD_FAST_AND_CLEAR:
    case STORE_FAST:
    case DELETE_FAST:
    case MAKE_CELL:
    case LOAD_CLOSURE:
    case LOAD_DEREF:
    case STORE_DEREF:
    case DELETE_DEREF:
    case LOAD_FROM_DICT_OR_DEREF:
      return true;
    default:
      return false;
  }
}

bool clears_local(int opcode) { return opcode == LOAD_FAST_AND_CLEAR; }

int reversed_jump(int opcode) {
  switch (opcode) {
    case JUMP_FORWARD:
      return JUMP_BACKWARD;
    case JUMP_BACKWARD:
      return JUMP_FORWARD;
    default:
      return -1;
  }
}

int negated_jump(int opcode) {
  switch (opcode) {
    case POP_JUMP_IF_FALSE:
      return POP_JUMP_IF_TRUE;
    case POP_JUMP_IF_TRUE:
      return POP_JUMP_IF_FALSE;
    case POP_JUMP_IF_NONE:
      return POP_JUMP_IF_NOT_NONE;
    case POP_JUMP_IF_NOT_NONE:
      return POP_JUMP_IF_NONE;
    default:
      return -1;
  }
}

const std::vector<int>& call_opcodes() {
  static const std::vector<int> opcodes{CALL};
  return opcodes;
}

bool loads_method(int opcode, int argument) {
  return (opcode == LOAD_ATTR || opcode == LOAD_SUPER_ATTR) && (argument & 1) != 0;
}

AttributeLoad plain_load(int opcode, int argument) {
  return {opcode, argument & ~1, opcode == LOAD_SUPER_ATTR ? 3 : 1};
}

int name_index(int opcode, int argument) {
  return opcode == LOAD_SUPER_ATTR ? argument >> 2 : argument >> 1;
}

int comparison_of(int argument) { return argument >> 4; }

int skipped_at_loop_end() { return 1; }

bool merges_locations() { return true; }

std::string_view python_version() { return "3.12"; }

}  // namespace backplane::cpython

#endif
