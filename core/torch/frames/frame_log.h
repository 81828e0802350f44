// What of a frame's code is looked at by people, and by the program itself.
#pragma once

#include <Python.h>
//
#include <string>

#include "core/cpython/bytecode/rewrite.h"

namespace backplane::call {

// As the module dis prints it.
std::string disassembly(PyObject* code);

// What a programmer may do about a break; empty or "\n  hint: ...".
std::string hint_for(const std::string& reason);

// The name of a function that the code may call to look at its own frame: "locals". Such a frame
// shows what it is made of. Empty where there is none.
std::string find_frame_reader(const cpython::OriginalCode& original);

}  // namespace backplane::call
