#include <Python.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000

#include <opcode.h>

#include "core/torch/interpret/frame_state.h"

namespace backplane::capture {

Flow run_version_instruction(FrameState& state, const cpython::Instruction& it, bool& out_handled) {
  out_handled = true;
  switch (it.opcode) {
    case PRECALL:
      return Flow::kNext;
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_FALSE:
      return jump_on_truth(state, it, false, false);
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_TRUE:
      return jump_on_truth(state, it, true, false);
    case JUMP_IF_FALSE_OR_POP:
      return jump_on_truth(state, it, false, true);
    case JUMP_IF_TRUE_OR_POP:
      return jump_on_truth(state, it, true, true);
    case POP_JUMP_FORWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NONE:
      return jump_on_none(state, it, true);
    case POP_JUMP_FORWARD_IF_NOT_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
      return jump_on_none(state, it, false);
    case UNARY_POSITIVE:
      return unary(state, PyNumber_Positive);
    case LIST_TO_TUPLE:
      return list_to_tuple(state);
    case SEND: {  // what the receiver returns takes its place
      PyObject* result = nullptr;
      const PySendResult sent = send(state, result);
      if (!result) return Flow::kError;
      if (sent == PYGEN_NEXT) return push_result(state, result);
      Py_SETREF(state.peek(1), result);
      return jump(state, it);
    }
    default:
      out_handled = false;
      return Flow::kNext;
  }
}

}  // namespace backplane::capture

#endif
