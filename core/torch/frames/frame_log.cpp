#include "core/torch/frames/frame_log.h"

#include <opcode.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/cpython/bytecode/code.h"
#include "core/cpython/bytecode/opcodes.h"

namespace backplane::call {

std::string disassembly(PyObject* code) {
  using cpython::Ref;
  const Ref module = Ref::steal(PyImport_ImportModule("dis"));
  const Ref made =
      module ? Ref::steal(PyObject_CallMethod(module.get(), "Bytecode", "O", code)) : Ref();
  const Ref text = made ? Ref::steal(PyObject_CallMethod(made.get(), "dis", nullptr)) : Ref();
  const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (utf8) return utf8;
  return cpython::take_python_error("Disassembling").message();
}

std::string hint_for(const std::string& reason) {
  struct Row {
    std::string_view part, hint;
  };
  constexpr std::array<Row, 4> kHints{{
      {"_local_scalar_dense",
       "a branch on a tensor's value ends the graph; torch.where() keeps both sides in it"},
      {"calls item,", "keep the value in a tensor, or ask for it behind the compiled function"},
      {"calls tolist,", "keep the value in a tensor, or ask for it behind the compiled function"},
      {"calls print,", "print behind the compiled function"},
  }};
  for (const Row& row : kHints)
    if (reason.find(row.part) != std::string::npos) return "\n  hint: " + std::string(row.hint);
  return "";
}

std::string find_frame_reader(const cpython::OriginalCode& original) {
  constexpr std::array<std::string_view, 5> kBuiltins{"locals", "eval", "exec", "dir", "vars"};
  constexpr std::array<std::string_view, 2> kOthers{"_getframe", "currentframe"};
  for (const cpython::Instruction& it : original.code.instructions) {
    const bool is_global = it.opcode == LOAD_GLOBAL;
    if (!is_global && it.opcode != LOAD_ATTR && it.opcode != LOAD_METHOD) continue;
    const Py_ssize_t index = cpython::name_index(it.opcode, it.argument);
    const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(original.object()->co_names, index));
    if (!name) PyErr_Clear();
    if (!name) continue;
    if (std::ranges::find(kOthers, std::string_view(name)) != kOthers.end()) return name;
    // As a method, `eval` is that of a module.
    if (is_global && std::ranges::find(kBuiltins, std::string_view(name)) != kBuiltins.end())
      return name;
  }
  return "";
}

}  // namespace backplane::call
