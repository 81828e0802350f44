#include <opcode.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/cpython/bytecode/code.h"
#include "core/cpython/bytecode/opcodes.h"

// CPython's constructor of code objects is in no public header. _PyCode_Validate and _PyCode_New
// are exported, and the structure is the same in 3.11 and 3.12.
#include "core/cpython/bytecode/internals.h"

namespace backplane::cpython {

namespace {

int prefix_count(int argument) {
  const auto value = static_cast<unsigned>(argument);
  return value > 0xffffffu ? 3 : value > 0xffffu ? 2 : value > 0xffu ? 1 : 0;
}

Status unsupported_jump(const Instruction& instruction) {
  return Status(backplane::Code::kUnsupported,
                "Python " + std::string(python_version()) + " has no jump with opcode " +
                    std::to_string(instruction.opcode) + " in the direction of its target.");
}

// Splits `if x: jump back` in two where the version has only forward conditional jumps.
Code split_backward_conditions(const Code& code) {
  std::vector<std::int32_t> new_index(code.instructions.size() + 1);
  std::int32_t next = 0;
  const auto is_split = [&](std::size_t i) {
    const Instruction& instruction = code.instructions[i];
    return instruction.target != kNoTarget && instruction.target <= static_cast<std::int32_t>(i) &&
           jump_of(instruction.opcode) == Jump::kForward && reversed_jump(instruction.opcode) < 0 &&
           negated_jump(instruction.opcode) >= 0;
  };
  for (std::size_t i = 0; i < code.instructions.size(); ++i) {
    new_index[i] = next;
    next += is_split(i) ? 2 : 1;
  }
  new_index.back() = next;
  if (next == static_cast<std::int32_t>(code.instructions.size())) return code;

  Code out;
  out.first_line = code.first_line;
  for (std::size_t i = 0; i < code.instructions.size(); ++i) {
    Instruction instruction = code.instructions[i];
    if (instruction.target != kNoTarget)
      instruction.target = new_index[static_cast<std::size_t>(instruction.target)];
    if (!is_split(i)) {
      out.instructions.push_back(instruction);
      continue;
    }
    Instruction over = instruction;
    over.opcode = negated_jump(instruction.opcode);
    over.target = new_index[i + 1];
    instruction.opcode = JUMP_BACKWARD;
    out.instructions.push_back(over);
    out.instructions.push_back(instruction);
  }
  for (ExceptionRange range : code.exceptions) {
    range.begin = new_index[static_cast<std::size_t>(range.begin)];
    range.end = new_index[static_cast<std::size_t>(range.end)];
    range.target = new_index[static_cast<std::size_t>(range.target)];
    out.exceptions.push_back(range);
  }
  return out;
}

Status set_directions(Code& code) {
  for (std::size_t i = 0; i < code.instructions.size(); ++i) {
    Instruction& instruction = code.instructions[i];
    if (instruction.target == kNoTarget) continue;
    const Jump wanted =
        instruction.target <= static_cast<std::int32_t>(i) ? Jump::kBackward : Jump::kForward;
    if (jump_of(instruction.opcode) == wanted) continue;
    const int reversed = reversed_jump(instruction.opcode);
    if (reversed < 0) return unsupported_jump(instruction);
    instruction.opcode = reversed;
  }
  return {};
}

// Where each instruction starts, in code units, with its prefixes; settles arguments of jumps.
struct Layout {
  std::vector<int> start;   // one more than instructions
  std::vector<int> prefix;  // EXTENDED_ARGs
};

Layout lay_out(Code& code) {
  const std::size_t count = code.instructions.size();
  Layout layout{std::vector<int>(count + 1), std::vector<int>(count, 0)};
  for (bool changed = true; changed;) {
    changed = false;
    int at = 0;
    for (std::size_t i = 0; i < count; ++i) {
      layout.start[i] = at;
      at += layout.prefix[i] + 1 + cache_count(code.instructions[i].opcode);
    }
    layout.start[count] = at;
    for (std::size_t i = 0; i < count; ++i) {
      Instruction& instruction = code.instructions[i];
      if (instruction.target != kNoTarget)
        instruction.argument = std::abs(layout.start[static_cast<std::size_t>(instruction.target)] -
                                        layout.start[i + 1]);
      // Only ever grows, so this ends.
      const int wanted = prefix_count(instruction.argument);
      if (wanted > layout.prefix[i]) {
        layout.prefix[i] = wanted;
        changed = true;
      }
    }
  }
  return layout;
}

std::string write_units(const Code& code, const Layout& layout) {
  std::string bytes;
  bytes.reserve(2 * static_cast<std::size_t>(layout.start.back()));
  for (std::size_t i = 0; i < code.instructions.size(); ++i) {
    const Instruction& instruction = code.instructions[i];
    const auto argument = static_cast<unsigned>(instruction.argument);
    for (int k = layout.prefix[i]; k > 0; --k) {
      bytes += static_cast<char>(EXTENDED_ARG);
      bytes += static_cast<char>(argument >> (8 * k) & 255u);
    }
    bytes += static_cast<char>(instruction.opcode);
    bytes += static_cast<char>(argument & 255u);
    bytes.append(2 * static_cast<std::size_t>(cache_count(instruction.opcode)), '\0');
  }
  return bytes;
}

Ref bytes_of(const std::string& text) {
  return Ref::steal(PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

}  // namespace

CodeShape::CodeShape(PyCodeObject* object)
    : name(Ref::borrow(object->co_name)),
      qualified_name(Ref::borrow(object->co_qualname)),
      constants(Ref::borrow(object->co_consts)),
      names(Ref::borrow(object->co_names)),
      local_names(Ref::borrow(object->co_localsplusnames)),
      local_kinds(PyBytes_AS_STRING(object->co_localspluskinds),
                  static_cast<std::size_t>(PyBytes_GET_SIZE(object->co_localspluskinds))),
      argument_count(object->co_argcount),
      positional_only_count(object->co_posonlyargcount),
      keyword_only_count(object->co_kwonlyargcount),
      flags(object->co_flags),
      like(object) {}

Result<Ref> assemble(Code given, const CodeShape& shape) {
  Code code = split_backward_conditions(given);
  BP_RETURN_IF_ERROR(set_directions(code));
  BP_ASSIGN_OR_RETURN(const StackDepths depths, find_stack_depths(code));
  const Layout layout = lay_out(code);

  LocationWriter locations(code.first_line);
  for (std::size_t i = 0; i < code.instructions.size(); ++i)
    locations.add(code.instructions[i].location, layout.start[i + 1] - layout.start[i]);
  std::vector<HandlerEntry> handlers;
  for (const ExceptionRange& range : code.exceptions)
    if (range.end > range.begin)
      handlers.push_back({layout.start[static_cast<std::size_t>(range.begin)],
                          layout.start[static_cast<std::size_t>(range.end)],
                          layout.start[static_cast<std::size_t>(range.target)], range.depth,
                          range.push_lasti});

  const Ref units = bytes_of(write_units(code, layout));
  const Ref lines = bytes_of(std::move(locations).take());
  const Ref exceptions = bytes_of(write_handlers(handlers));
  const Ref kinds = bytes_of(shape.local_kinds);
  if (!units || !lines || !exceptions || !kinds) return take_python_error("Assembling");
  _PyCodeConstructor made{};
  made.filename = shape.like->co_filename;
  made.name = shape.name.get();
  made.qualname = shape.qualified_name.get();
  made.flags = shape.flags;
  made.code = units.get();
  made.firstlineno = code.first_line;
  made.linetable = lines.get();
  made.consts = shape.constants.get();
  made.names = shape.names.get();
  made.localsplusnames = shape.local_names.get();
  made.localspluskinds = kinds.get();
  made.argcount = shape.argument_count;
  made.posonlyargcount = shape.positional_only_count;
  made.kwonlyargcount = shape.keyword_only_count;
  made.stacksize = std::max({1, depths.maximum, shape.minimal_stack_size});
  made.exceptiontable = exceptions.get();
  if (_PyCode_Validate(&made) < 0) return take_python_error("CPython's check of the code");
  Ref object = Ref::steal(reinterpret_cast<PyObject*>(_PyCode_New(&made)));
  if (!object) return take_python_error("Making the code object");
  return object;
}

}  // namespace backplane::cpython
