#include <opcode.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/cpython/bytecode/code.h"
#include "core/cpython/bytecode/opcodes.h"

namespace backplane::cpython {

namespace {

std::string_view view_of(PyObject* bytes) {
  return {PyBytes_AS_STRING(bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes))};
}

Status corrupt(const char* what) {
  return Status(backplane::Code::kDataCorrupt, std::string("The code object has ") + what + ".");
}

}  // namespace

Status take_python_error(const char* what) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  std::string text = std::string(what) + " failed";
  if (value) {
    const Ref string = Ref::steal(PyObject_Str(value));
    const char* utf8 = string ? PyUnicode_AsUTF8(string.get()) : nullptr;
    if (utf8) text += std::string(": ") + utf8;
  }
  PyErr_Clear();
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return Status(backplane::Code::kInternal, text + ".");
}

Result<Code> decode(PyCodeObject* object) {
  const Ref held = Ref::steal(PyCode_GetCode(object));
  if (!held) return take_python_error("Reading the bytecode");
  const std::string_view bytes = view_of(held.get());
  const auto unit = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const std::size_t unit_count = bytes.size() / 2;
  const auto locations =
      read_locations(view_of(object->co_linetable), object->co_firstlineno, unit_count);
  if (!locations) return corrupt("a line table that cannot be read");

  Code code;
  code.first_line = object->co_firstlineno;
  // By code unit: the instruction that starts there, with or without its prefixes.
  std::vector<std::int32_t> index_at(unit_count + 1, kNoTarget);
  std::vector<std::int32_t> end_of;  // by instruction, behind its caches
  unsigned prefix = 0;
  std::size_t start = 0;
  for (std::size_t at = 0; at < unit_count;) {
    const int opcode = unit(2 * at);
    const unsigned argument = unit(2 * at + 1) | prefix;
    if (opcode == EXTENDED_ARG) {
      prefix = argument << 8;
      ++at;
      continue;
    }
    const auto index = static_cast<std::int32_t>(code.instructions.size());
    index_at[start] = index_at[at] = index;
    code.instructions.push_back({opcode, static_cast<int>(argument), kNoTarget, (*locations)[at],
                                 static_cast<std::int32_t>(at)});
    at += 1 + static_cast<std::size_t>(cache_count(opcode));
    if (at > unit_count) return corrupt("an instruction that is cut off");
    end_of.push_back(static_cast<std::int32_t>(at));
    start = at;
    prefix = 0;
  }
  index_at[unit_count] = static_cast<std::int32_t>(code.instructions.size());

  const auto index_of = [&](std::int64_t at) {
    return at < 0 || at > static_cast<std::int64_t>(unit_count)
               ? kNoTarget
               : index_at[static_cast<std::size_t>(at)];
  };
  for (std::size_t i = 0; i < code.instructions.size(); ++i) {
    Instruction& instruction = code.instructions[i];
    const Jump jump = jump_of(instruction.opcode);
    if (jump == Jump::kNone) continue;
    const std::int64_t distance =
        jump == Jump::kForward ? instruction.argument : -std::int64_t{instruction.argument};
    instruction.target = index_of(end_of[i] + distance);
    if (instruction.target == kNoTarget ||
        instruction.target >= static_cast<std::int32_t>(code.instructions.size()))
      return corrupt("a jump into the middle of an instruction");
  }
  const auto handlers = read_handlers(view_of(object->co_exceptiontable));
  if (!handlers) return corrupt("an exception table that cannot be read");
  for (const HandlerEntry& entry : *handlers) {
    const ExceptionRange range{index_of(entry.begin), index_of(entry.end), index_of(entry.target),
                               entry.depth, entry.push_lasti};
    if (range.begin == kNoTarget || range.end == kNoTarget || range.target == kNoTarget)
      return corrupt("an exception range that cuts an instruction");
    code.exceptions.push_back(range);
  }
  return code;
}

}  // namespace backplane::cpython
