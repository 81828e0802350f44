#include "core/cpython/bytecode/rewrite.h"

#include <opcode.h>

#include <algorithm>
#include <string_view>

#include "core/cpython/bytecode/opcodes.h"

// Kinds of local variables, which CPython has in an internal header.
#include "core/cpython/bytecode/internals.h"

namespace backplane::cpython {

namespace {

Status unsupported(std::string what) {
  return Status(backplane::Code::kUnsupported, std::move(what));
}

unsigned kind_of(PyCodeObject* code, std::size_t local) {
  return static_cast<unsigned char>(PyBytes_AS_STRING(code->co_localspluskinds)[local]);
}

Ref name_of(PyCodeObject* code, std::size_t local) {
  return Ref::borrow(PyTuple_GET_ITEM(code->co_localsplusnames, static_cast<Py_ssize_t>(local)));
}

std::size_t local_count(PyCodeObject* code) {
  return static_cast<std::size_t>(code->co_nlocalsplus);
}

int slot_count(PyCodeObject* code) {
  return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
         ((code->co_flags & CO_VARKEYWORDS) != 0);
}

// A tuple that grows, and where its elements are.
class Pool {
 public:
  explicit Pool(PyObject* tuple) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
      items_.push_back(Ref::borrow(PyTuple_GET_ITEM(tuple, i)));
  }
  int add(PyObject* object) {
    for (std::size_t i = 0; i < items_.size(); ++i)
      if (items_[i].get() == object) return static_cast<int>(i);
    items_.push_back(Ref::borrow(object));
    return static_cast<int>(items_.size() - 1);
  }
  Ref tuple() const {
    Ref made = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(items_.size())));
    for (std::size_t i = 0; made && i < items_.size(); ++i)
      PyTuple_SET_ITEM(made.get(), static_cast<Py_ssize_t>(i), Py_NewRef(items_[i].get()));
    return made;
  }

 private:
  std::vector<Ref> items_;
};

// The locals of a new code object, in CPython's order: variables, cells, free variables.
class Locals {
 public:
  int add(Ref name, unsigned kind) {
    names_.push_back(std::move(name));
    kinds_ += static_cast<char>(kind);
    return static_cast<int>(names_.size() - 1);
  }
  void apply(CodeShape& shape) const {
    Ref names = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(names_.size())));
    for (std::size_t i = 0; names && i < names_.size(); ++i)
      PyTuple_SET_ITEM(names.get(), static_cast<Py_ssize_t>(i), Py_NewRef(names_[i].get()));
    shape.local_names = std::move(names);
    shape.local_kinds = kinds_;
  }

 private:
  std::vector<Ref> names_;
  std::string kinds_;
};

// New code behind which a body is copied.
class Writer {
 public:
  explicit Writer(const Location& location) : location_(location) {}

  std::int32_t add(int opcode, int argument = 0, std::int32_t target = kNoTarget) {
    code.instructions.push_back({opcode, argument, target, location_, 0});
    return static_cast<std::int32_t>(code.instructions.size() - 1);
  }
  std::int32_t size() const { return static_cast<std::int32_t>(code.instructions.size()); }
  void set_location(const Location& location) { location_ = location; }

  void call(int argument_count) {
    for (const int opcode : call_opcodes()) add(opcode, argument_count);
  }

  // The frame's instructions with their handlers; where they start.
  std::int32_t copy(const Code& body, const std::vector<int>& local_of, bool makes_cells) {
    const std::int32_t base = size();
    bool started = false;  // cells that are made later belong to inlined comprehensions
    for (Instruction it : body.instructions) {
      if (uses_local(it.opcode)) it.argument = local_of[static_cast<std::size_t>(it.argument)];
      started = started || it.opcode == RESUME;
      if (!makes_cells && !started && (it.opcode == MAKE_CELL || it.opcode == COPY_FREE_VARS)) {
        it.opcode = NOP;
        it.argument = 0;
      }
      if (it.target != kNoTarget) it.target += base;
      code.instructions.push_back(it);
    }
    for (ExceptionRange range : body.exceptions) {
      range.begin += base;
      range.end += base;
      range.target += base;
      code.exceptions.push_back(range);
    }
    return base;
  }

  Code code;

 private:
  Location location_;
};

const ExceptionRange* range_at(const Code& code, std::int32_t instruction) {
  for (const ExceptionRange& range : code.exceptions)
    if (range.begin <= instruction && instruction < range.end) return &range;
  return nullptr;
}

// Modified code under construction.
class Modified {
 public:
  Modified(const FrameCode& frame, std::size_t temporary_count)
      : frame_(frame),
        object_(frame.object()),
        shape_(object_),
        constants_(object_->co_consts),
        names_(object_->co_names),
        writer_(Location{}) {
    Locals locals;
    const std::size_t count = local_count(object_);
    const auto variable_count = static_cast<std::size_t>(object_->co_nlocals);
    for (std::size_t i = 0; i < variable_count; ++i)
      own_local_.push_back(locals.add(name_of(object_, i), kind_of(object_, i)));
    for (std::size_t i = 0; i < temporary_count; ++i)
      temporaries_.push_back(locals.add(
          Ref::steal(PyUnicode_FromFormat("___tmp%d", static_cast<int>(i))), CO_FAST_LOCAL));
    for (std::size_t i = variable_count; i < count; ++i)
      own_local_.push_back(locals.add(name_of(object_, i), kind_of(object_, i)));
    locals.apply(shape_);
  }

  Writer& writer() { return writer_; }

  // By local of the original.
  int local(int original) const {
    return own_local_[static_cast<std::size_t>(
        frame_.local_of[static_cast<std::size_t>(original)])];
  }
  std::vector<int> locals_of_original() const {
    std::vector<int> out;
    for (const int own : frame_.local_of) out.push_back(own_local_[static_cast<std::size_t>(own)]);
    return out;
  }

  void add(const Emitted& it) {
    int argument = it.argument;
    if (it.constant) argument = constants_.add(it.constant.get());
    if (it.name) argument = names_.add(it.name.get());
    if (uses_local(it.opcode)) argument = own_local_[static_cast<std::size_t>(argument)];
    writer_.add(it.opcode, argument);
  }

  // What every frame does first.
  void add_prologue(const Code& own) {
    for (const Instruction& it : own.instructions) {
      if (it.opcode != MAKE_CELL && it.opcode != COPY_FREE_VARS && it.opcode != RESUME) break;
      writer_.set_location(it.location);
      writer_.add(it.opcode, uses_local(it.opcode)
                                 ? own_local_[static_cast<std::size_t>(it.argument)]
                                 : it.argument);
    }
  }

  void store_slot(std::size_t slot) { writer_.add(STORE_FAST, temporaries_[slot]); }
  void store_slots(const std::vector<Slot>& slots) {
    // A NULL is stored as well: to drop one is not allowed.
    for (std::size_t i = slots.size(); i-- > 0;) store_slot(i);
  }
  void load_slots(const std::vector<Slot>& slots) {
    for (std::size_t i = 0; i < slots.size(); ++i)
      if (slots[i] == Slot::kNull)
        writer_.add(PUSH_NULL);
      else
        writer_.add(LOAD_FAST, temporaries_[i]);
  }

  // Calls the resume point with the stack and the locals, and returns what it gives.
  Status add_tail(const BreakPlan& plan, std::int32_t target, std::vector<Slot> slots) {
    const FrameLayout layout{std::move(slots), plan.layout.bound, plan.layout.kept};
    BP_ASSIGN_OR_RETURN(const ResumePoint point, plan.make_resume_point(target, layout));
    store_slots(layout.slots);
    writer_.add(PUSH_NULL);
    writer_.add(LOAD_CONST, constants_.add(point.callable.get()));
    for (const int argument : point.arguments)
      writer_.add(LOAD_FAST, argument >= 0 ? local(argument)
                                           : temporaries_[static_cast<std::size_t>(-1 - argument)]);
    writer_.call(static_cast<int>(point.arguments.size()));
    writer_.add(RETURN_VALUE);
    return {};
  }

  Result<Ref> finish(bool takes_positions) {
    shape_.constants = constants_.tuple();
    shape_.names = names_.tuple();
    if (takes_positions) {
      shape_.argument_count = slot_count(object_);
      shape_.positional_only_count = shape_.keyword_only_count = 0;
      shape_.flags &= ~(CO_VARARGS | CO_VARKEYWORDS);
    }
    writer_.code.first_line = object_->co_firstlineno;
    std::sort(writer_.code.exceptions.begin(), writer_.code.exceptions.end(),
              [](const ExceptionRange& a, const ExceptionRange& b) { return a.begin < b.begin; });
    return assemble(std::move(writer_.code), shape_);
  }

 private:
  const FrameCode& frame_;
  PyCodeObject* object_;
  CodeShape shape_;
  Pool constants_, names_;
  Writer writer_;
  std::vector<int> own_local_;    // by local of the frame's code
  std::vector<int> temporaries_;  // by slot of the stack
};

}  // namespace

Result<OriginalCode> OriginalCode::make(PyCodeObject* code) {
  OriginalCode original;
  original.held = Ref::borrow(reinterpret_cast<PyObject*>(code));
  BP_ASSIGN_OR_RETURN(original.code, decode(code));
  original.live = find_live_locals(original.code, local_count(code));
  for (std::size_t i = 0; i < local_count(code); ++i)
    if (original.is_free(i) && code->co_argcount > 0 &&
        PyUnicode_CompareWithASCIIString(name_of(code, i).get(), "__class__") == 0)
      original.keeps_first_argument = true;
  return original;
}

bool OriginalCode::is_cell(std::size_t local) const {
  return (kind_of(object(), local) & CO_FAST_CELL) != 0;
}

bool OriginalCode::is_free(std::size_t local) const {
  return (kind_of(object(), local) & CO_FAST_FREE) != 0;
}

FrameCode FrameCode::of(const OriginalCode& original) {
  FrameCode frame;
  frame.held = original.held;
  for (std::size_t i = 0; i < local_count(original.object()); ++i)
    frame.local_of.push_back(static_cast<int>(i));
  for (int i = 0; i < slot_count(original.object()); ++i) frame.arguments.push_back(i);
  return frame;
}

Result<FrameCode> make_resume_code(const OriginalCode& original, std::int32_t target,
                                   const FrameLayout& layout) {
  PyCodeObject* object = original.object();
  const std::size_t count = local_count(object);
  const LocalSet& live = original.live[static_cast<std::size_t>(target)];
  FrameCode frame;
  frame.is_resume = true;
  frame.local_of.assign(count, -1);
  Locals locals;
  const auto place = [&](std::size_t local, unsigned kind) {
    frame.local_of[local] = locals.add(name_of(object, local), kind);
  };
  const auto variable_kind = [&](std::size_t local) {
    return original.is_cell(local) ? unsigned{CO_FAST_LOCAL | CO_FAST_CELL}
                                   : unsigned{CO_FAST_LOCAL};
  };
  if (original.keeps_first_argument) {
    if (!layout.bound[0]) return unsupported("the first argument is deleted before super()");
    place(0, variable_kind(0));
    frame.arguments.push_back(0);
  }
  std::vector<int> slot_local(layout.slots.size(), -1);
  for (std::size_t i = 0; i < layout.slots.size(); ++i) {
    if (layout.slots[i] == Slot::kEither)
      return unsupported("a method that is looked up and not called yet");
    if (layout.slots[i] == Slot::kNull) continue;
    slot_local[i] = locals.add(Ref::steal(PyUnicode_FromFormat("___stack%d", static_cast<int>(i))),
                               CO_FAST_LOCAL);
    frame.arguments.push_back(-1 - static_cast<int>(i));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_kept = !layout.kept.empty() && layout.kept[i];
    if (original.is_free(i) || (!live[i] && !is_kept) || !layout.bound[i] || frame.local_of[i] >= 0)
      continue;
    place(i, variable_kind(i));
    frame.arguments.push_back(static_cast<int>(i));
  }
  int free_count = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (!original.is_free(i) && frame.local_of[i] < 0) place(i, CO_FAST_LOCAL);
  for (std::size_t i = 0; i < count; ++i)
    if (original.is_free(i)) {
      place(i, CO_FAST_FREE);
      ++free_count;
    }

  Writer writer(original.code.instructions[static_cast<std::size_t>(target)].location);
  if (free_count > 0) writer.add(COPY_FREE_VARS, free_count);
  writer.add(RESUME);
  for (const int local : slot_local)
    if (local < 0) {
      writer.add(PUSH_NULL);
    } else {
      writer.add(LOAD_FAST, local);
      writer.add(DELETE_FAST, local);  // only the stack holds it
    }
  const std::int32_t jump = writer.add(JUMP_FORWARD);
  frame.base = writer.copy(original.code, frame.local_of, /*makes_cells=*/false);
  writer.code.instructions[static_cast<std::size_t>(jump)].target = frame.base + target;

  CodeShape shape(object);
  locals.apply(shape);
  shape.argument_count = static_cast<int>(frame.arguments.size());
  shape.positional_only_count = shape.keyword_only_count = 0;
  shape.flags &= ~(CO_VARARGS | CO_VARKEYWORDS);
  writer.code.first_line = object->co_firstlineno;
  BP_ASSIGN_OR_RETURN(frame.held, assemble(std::move(writer.code), shape));
  return frame;
}

std::int32_t first_of_break(const Code& code, std::int32_t instruction) {
  const auto opcode_at = [&](std::int32_t i) {
    return code.instructions[static_cast<std::size_t>(i)].opcode;
  };
  if (opcode_at(instruction) != CALL) return instruction;
  const auto& opcodes = call_opcodes();
  std::int32_t first = instruction - static_cast<std::int32_t>(opcodes.size()) + 1;
  if (first > 0 && opcode_at(first - 1) == KW_NAMES) --first;
  return first;
}

bool can_break_at(const Code& code, std::int32_t instruction) {
  const Instruction& it = code.instructions[static_cast<std::size_t>(instruction)];
  switch (it.opcode) {
    case RETURN_VALUE:
#ifdef RETURN_CONST
    case RETURN_CONST:
#endif
    case YIELD_VALUE:
    case SEND:
    case RETURN_GENERATOR:
    case PUSH_EXC_INFO:
    case POP_EXCEPT:
    case RERAISE:
    case WITH_EXCEPT_START:
    case CHECK_EXC_MATCH:
    case STORE_FAST:
    case DELETE_FAST:
      return false;
    default:
      return true;
  }
}

Result<Ref> make_broken_code(const OriginalCode& original, const FrameCode& frame,
                             const BreakPlan& plan) {
  const Code& body = original.code;
  const std::int32_t last = plan.instruction, first = first_of_break(body, last);
  const Instruction& breaking = body.instructions[static_cast<std::size_t>(last)];
  if (!can_break_at(body, last))
    return unsupported("the frame cannot go on behind this instruction");
  const std::vector<Slot>& before = plan.layout.slots;
  const bool falls_through = !ends_flow(breaking.opcode);
  const bool is_method = loads_method(breaking.opcode, breaking.argument);
  const bool ends_loop = breaking.opcode == FOR_ITER && skipped_at_loop_end() != 0;
  std::vector<Slot> behind = slots_after(breaking, before, false), at_target;
  if (ends_loop)
    at_target.assign(before.begin(), before.end() - 1);
  else if (breaking.target != kNoTarget)
    at_target = slots_after(breaking, before, true);
  // As a plain attribute below a NULL, so that it is known which of the two slots has a value.
  if (is_method) behind.end()[-2] = Slot::kNull;
  if (is_method) behind.back() = Slot::kValue;
  Modified modified(frame, std::max({before.size(), behind.size(), at_target.size()}));
  Writer& writer = modified.writer();

  std::int32_t jump = -1, copied = -1;
  // Without a prefix the frame's own instructions stand first and jump to the break.
  if (plan.prefix) {
    BP_ASSIGN_OR_RETURN(const Code own, decode(frame.object()));
    modified.add_prologue(own);
    for (const Emitted& it : plan.prefix->emitted) modified.add(it);
    for (const int local : plan.prefix->stored) writer.add(STORE_FAST, modified.local(local));
    const bool has_nulls = std::ranges::any_of(before, [](Slot s) { return s != Slot::kValue; });
    if (has_nulls) {
      for (std::size_t i = before.size(); i-- > 0;)
        if (before[i] == Slot::kValue) modified.store_slot(i);
      modified.load_slots(before);
    }
  } else {
    copied = writer.copy(body, modified.locals_of_original(), /*makes_cells=*/true);
    jump = copied + first;
  }
  const std::int32_t begin = writer.size();
  if (jump >= 0)
    writer.code.instructions[static_cast<std::size_t>(jump)] = {
        JUMP_FORWARD, 0, begin, body.instructions[static_cast<std::size_t>(first)].location, 0};
  std::int32_t breaking_at = -1;
  for (std::int32_t i = first; i <= last; ++i) {
    Instruction it = body.instructions[static_cast<std::size_t>(i)];
    if (uses_local(it.opcode)) it.argument = modified.local(it.argument);
    it.target = kNoTarget;
    if (is_method) {
      const AttributeLoad load = plain_load(it.opcode, it.argument);
      writer.set_location(it.location);
      writer.add(PUSH_NULL);
      // Below what the load takes, the order of which stays.
      for (int depth = load.taken + 1; depth > 1; --depth) writer.add(SWAP, depth);
      it.opcode = load.opcode;
      it.argument = load.argument;
    }
    breaking_at = writer.size();
    writer.code.instructions.push_back(it);
  }
  const std::int32_t end = writer.size();
  writer.set_location(breaking.location);
  if (falls_through) BP_RETURN_IF_ERROR(modified.add_tail(plan, last + 1, std::move(behind)));
  if (breaking.target != kNoTarget) {
    writer.code.instructions[static_cast<std::size_t>(breaking_at)].target = writer.size();
    // What CPython jumps over must lie there all the same.
    const std::int32_t skipped = ends_loop ? skipped_at_loop_end() : 0;
    for (std::int32_t i = 0; i < skipped; ++i)
      writer.code.instructions.push_back(
          body.instructions[static_cast<std::size_t>(breaking.target) +
                            static_cast<std::size_t>(i)]);
    BP_RETURN_IF_ERROR(modified.add_tail(plan, breaking.target + skipped, std::move(at_target)));
  }
  if (const ExceptionRange* range = range_at(body, last)) {
    if (copied < 0)
      copied = writer.copy(body, modified.locals_of_original(), /*makes_cells=*/false);
    writer.code.exceptions.push_back(
        {begin, end, copied + range->target, range->depth, range->push_lasti});
  }
  return modified.finish(plan.prefix != nullptr);
}

Result<Ref> make_straight_code(const FrameCode& frame, const std::vector<Emitted>& emitted) {
  Modified modified(frame, 0);
  BP_ASSIGN_OR_RETURN(const Code own, decode(frame.object()));
  modified.add_prologue(own);
  for (const Emitted& it : emitted) modified.add(it);
  return modified.finish(true);
}

Result<Ref> take_positions(PyCodeObject* code) {
  constexpr int kCollects = CO_VARARGS | CO_VARKEYWORDS;
  const auto same = reinterpret_cast<PyObject*>(code);
  if (code->co_kwonlyargcount == 0 && (code->co_flags & kCollects) == 0) return Ref::borrow(same);
  const Ref replace = Ref::steal(PyObject_GetAttrString(same, "replace"));
  const Ref none = Ref::steal(PyTuple_New(0));
  const Ref changes = Ref::steal(Py_BuildValue("{s:i,s:i,s:i,s:i}", "co_argcount", slot_count(code),
                                               "co_posonlyargcount", 0, "co_kwonlyargcount", 0,
                                               "co_flags", code->co_flags & ~kCollects));
  Ref made;
  if (replace && none && changes)
    made = Ref::steal(PyObject_Call(replace.get(), none.get(), changes.get()));
  if (!made) return take_python_error("Making code that takes positions");
  return made;
}

std::vector<Emitted> call_with_arguments(const OriginalCode& original, const FrameCode& frame,
                                         PyObject* callable) {
  std::vector<Emitted> out;
  out.push_back({PUSH_NULL, 0, {}, {}});
  out.push_back({LOAD_CONST, 0, Ref::borrow(callable), {}});
  const auto count = static_cast<int>(frame.arguments.size());
  for (int i = 0; i < count; ++i) {
    // The prologue puts an argument that inner functions share into a cell.
    const bool is_celled = !frame.is_resume && original.is_cell(static_cast<std::size_t>(i));
    out.push_back({is_celled ? LOAD_DEREF : LOAD_FAST, i, {}, {}});
  }
  for (const int opcode : call_opcodes()) out.push_back({opcode, count, {}, {}});
  return out;
}

}  // namespace backplane::cpython
