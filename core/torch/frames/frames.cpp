#include "core/torch/frames/frames.h"

#include <opcode.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <bit>
#include <string_view>

#include "core/base/flag_scope.h"
#include "core/base/log.h"
#include "core/cpython/bytecode/opcodes.h"
#include "core/cpython/bytecode/py_error.h"
#include "core/cpython/frame/running_frame.h"
#include "core/torch/bridge/errors.h"
#include "core/torch/bridge/held_signals.h"
#include "core/torch/frames/asked_gradients.h"
#include "core/torch/frames/frame_callable.h"
#include "core/torch/frames/frame_effects.h"
#include "core/torch/frames/frame_lifetimes.h"
#include "core/torch/frames/frame_log.h"
#include "core/torch/interpret/interpreter.h"

namespace backplane::call {

namespace {

using cpython::FrameLayout;
using cpython::Ref;
using cpython::Slot;
using guards::CallArguments;

// What modified code has asked to go on with, as the last thing it did. Its caller does that when
// the frame is gone, so that a break in a loop grows no stack.
struct Parked {
  std::shared_ptr<ProgramCode> code;
  std::vector<Ref> values;
};
thread_local Parked t_parked;

// A frame that ends may run finalizers, and these compiled functions of their own.
class OwnParked {
 public:
  OwnParked() : outer_(std::exchange(t_parked, {})) {}
  ~OwnParked() { t_parked = std::move(outer_); }
  OwnParked(const OwnParked&) = delete;
  OwnParked& operator=(const OwnParked&) = delete;

 private:
  Parked outer_;
};

// What the guards found for the modified code that is being called.
struct Running {
  const Entry* entry = nullptr;
  const guards::Registers* registers = nullptr;
  std::vector<Ref>* values = nullptr;  // its arguments
  Ref raised_by_hook;                  // which it raises behind its effects
};
thread_local Running t_running;

// Code that the frame after this runs as it is. What a frame has got is its own: the program may
// let go of it, and see that it ends.
struct Starting {
  PyObject* code = nullptr;
  std::vector<Ref>* values = nullptr;
};
thread_local Starting t_starting;

class RunningScope {
 public:
  RunningScope(const Entry* entry, const guards::Registers* registers, std::vector<Ref>* values)
      : outer_(std::exchange(t_running, {entry, registers, values, {}})) {}
  ~RunningScope() { t_running = std::move(outer_); }
  RunningScope(const RunningScope&) = delete;
  RunningScope& operator=(const RunningScope&) = delete;

 private:
  Running outer_;
};

// Hooks of saved tensors may raise in the graph, whose effects come behind it.
bool raises_behind_effects(const capture::World& world) {
  return world.began_with_grad() && !world.effects().all().empty();
}

PyObject* raise_of_hook(PyObject* const*, std::size_t) {
  if (!t_running.raised_by_hook) return Py_NewRef(Py_None);
  cpython::set_exception(std::exchange(t_running.raised_by_hook, {}));
  return nullptr;
}

// TorchDynamo in another thread may have put its frame hook before ours meanwhile: it is told to
// let this code run. A torch without these names is not told.
void hide_from_torchdynamo(PyObject* code) {
  const Ref hook = Ref::steal(PyImport_ImportModule("torch._C._dynamo.eval_frame"));
  const auto member = [](const Ref& of, const char* name) {
    return of ? Ref::steal(PyObject_GetAttrString(of.get(), name)) : Ref();
  };
  const Ref actions = member(hook, "_FrameAction"), skip = member(actions, "SKIP"),
            otherwise = member(actions, "DEFAULT");
  const Ref strategy = skip && otherwise
                           ? Ref::steal(PyObject_CallMethod(hook.get(), "_FrameExecStrategy", "OO",
                                                            skip.get(), otherwise.get()))
                           : Ref();
  if (strategy)
    Ref::steal(
        PyObject_CallMethod(hook.get(), "set_code_exec_strategy", "OO", code, strategy.get()));
  PyErr_Clear();
}

enum class FileKind { kProgram, kLibrary, kDynamo };

std::string folder_of(const char* module_name) {
  const bridge::HeldSignals held;
  const Ref module = Ref::steal(PyImport_ImportModule(module_name));
  const Ref file = module ? Ref::steal(PyObject_GetAttrString(module.get(), "__file__")) : Ref();
  const char* text = file ? PyUnicode_AsUTF8(file.get()) : nullptr;
  PyErr_Clear();
  const std::string path = text ? text : "";
  return path.substr(0, path.rfind('/') + 1);
}

// Python's and PyTorch's own code runs as it is; the program's frames that it calls are captured.
FileKind kind_of_file(PyCodeObject* code) {
  static const std::string standard = folder_of("os"), torch = folder_of("torch"),
                           own = folder_of("torch_backplane");
  const char* text = PyUnicode_AsUTF8(code->co_filename);
  if (!text) PyErr_Clear();
  const std::string_view file = text ? text : "";
  if (file.starts_with("<frozen ")) return FileKind::kLibrary;
  if (!torch.empty() && file.starts_with(torch)) {
    const std::string_view rest = file.substr(torch.size());
    if (rest.starts_with("_dynamo/")) return FileKind::kDynamo;
    const bool has_operators = rest == "nn/functional.py" ||
                               (rest.starts_with("nn/modules/") && rest != "nn/modules/module.py");
    return has_operators ? FileKind::kProgram : FileKind::kLibrary;
  }
  if (!own.empty() && file.starts_with(own)) return FileKind::kLibrary;
  const bool is_package = file.find("/site-packages/") != std::string_view::npos ||
                          file.find("/dist-packages/") != std::string_view::npos;
  return !is_package && !standard.empty() && file.starts_with(standard) ? FileKind::kLibrary
                                                                        : FileKind::kProgram;
}

std::string text_of(PyObject* name) {
  const char* utf8 = PyUnicode_AsUTF8(name);
  if (utf8) return utf8;
  PyErr_Clear();
  return "?";
}

std::vector<PyObject*> borrowed(const std::vector<Ref>& values) {
  std::vector<PyObject*> out;
  out.reserve(values.size());
  for (const Ref& value : values) out.push_back(value.get());
  return out;
}

// A function of the same closure with other code.
Ref function_like(PyObject* function, PyObject* code, PyObject* globals) {
  Ref made = Ref::steal(PyFunction_New(code, globals));
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  if (made && closure && PyFunction_SetClosure(made.get(), closure) != 0) made = {};
  return made;
}

Status unsupported(std::string what) { return Status(Code::kUnsupported, std::move(what)); }

// Its content may be another than when the frame started, although it is the same object.
bool may_have_changed(capture::World& world, PyObject* object) {
  return !capture::is_primitive(object) && !capture::is_fixed(object) &&
         !world.is_outside(object) && !world.is_input_tensor(object) && !PyTuple_CheckExact(object);
}

}  // namespace

void ReasonCounts::add(const std::string& reason) {
  const auto found =
      std::ranges::find_if(counts_, [&](const auto& known) { return known.first == reason; });
  if (found != counts_.end())
    ++found->second;
  else
    counts_.emplace_back(reason, 1);
}

std::shared_ptr<ProgramCode> Frames::find_code(PyCodeObject* code, PyObject* globals) {
  auto& known = by_code_[code];
  for (const auto& one : known)
    if (one->globals.get() == globals) return one;
  auto made = std::make_shared<ProgramCode>();
  made->name = text_of(code->co_qualname);
  made->own.held = Ref::borrow(reinterpret_cast<PyObject*>(code));
  made->globals = Ref::borrow(globals);
  known.push_back(made);
  codes_.push_back(made);
  return made;
}

// Each code is in `codes_` and in one of the tables.
void Frames::show_refs(cpython::OwnedRefs& out) const {
  for (const auto& code : codes_)
    if (code.use_count() == 2) out.show(*code);
}

void Frames::count_plain(const ProgramCode& code, const std::string& reason) {
  ++plain_calls_;
  plain_reasons_.add(code.name + ": " + reason);
}

PyObject* Frames::evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  const cpython::FrameContent content = cpython::content_of(frame);
  PyCodeObject* code = content.code;
  constexpr int kSuspends =
      CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
  if (const Starting starting = std::exchange(t_starting, {});
      starting.code == reinterpret_cast<PyObject*>(code)) {
    starting.values->clear();
    return cpython::evaluate_by_default(thread, frame, throwing);
  }
  if (throwing || content.is_generator || content.first_unit != 0 ||
      (code->co_flags & CO_OPTIMIZED) == 0 || own_codes_.count(code) != 0)
    return cpython::evaluate_by_default(thread, frame, throwing);
  // What torch.jit.trace runs it must see.
  if (capture::is_below_dispatcher() || torch::jit::tracer::isTracing())
    return cpython::evaluate_unhooked(thread, frame, throwing);
  if (const auto ran = cpython::evaluate_interruption(thread, frame, throwing)) return *ran;
  // Runs when something is let go, or the collector comes: none of the program's.
  if (code->co_name == capture::finalizer_name())
    return cpython::evaluate_unhooked(thread, frame, throwing);
  const FileKind kind = reinterpret_cast<PyObject*>(code) == options_.target.get()
                            ? FileKind::kProgram
                            : kind_of_file(code);
  if (kind == FileKind::kProgram && (code->co_flags & kSuspends) != 0) {
    ++plain_calls_;
    plain_reasons_.add(text_of(code->co_qualname) +
                       ": a generator or coroutine is no frame to resume");
    return cpython::evaluate_by_default(thread, frame, throwing);
  }
  if (kind == FileKind::kDynamo) return cpython::evaluate_unhooked(thread, frame, throwing);
  if (kind == FileKind::kLibrary) return cpython::evaluate_by_default(thread, frame, throwing);

  if (capture::is_disabled(content.function))
    return cpython::evaluate_unhooked(thread, frame, throwing);

  const std::shared_ptr<Frames> self = shared_from_this();
  const std::shared_ptr<ProgramCode> known = find_code(code, content.globals);
  const int count = code->co_argcount + code->co_kwonlyargcount +
                    ((code->co_flags & CO_VARARGS) != 0) + ((code->co_flags & CO_VARKEYWORDS) != 0);
  std::vector<Ref> values;
  for (int i = 0; i < count; ++i) values.push_back(Ref::borrow(content.locals[i]));
  values.push_back(Ref::borrow(content.function));
  guards::Registers registers;
  std::shared_ptr<FrameEntry> entry;
  {
    const std::vector<PyObject*> pointers = borrowed(values);
    entry = find_entry(*known, content.function, {pointers.data(), pointers.size(), nullptr},
                       registers);
  }
  cpython::UnrunFrame unrun(thread, frame);
  if (!entry && PyErr_Occurred()) return nullptr;
  if (!entry) return cpython::evaluate_by_default(thread, unrun.hand_on(), throwing);
  return run(known, std::move(entry), content.function, std::move(values), registers);
}

std::shared_ptr<FrameEntry> Frames::find_entry(ProgramCode& code, PyObject* function,
                                               const CallArguments& call,
                                               guards::Registers& out_registers) {
  // Python that serves the capture, such as the text of a guard, is none of the program's.
  const cpython::HookPause pause;
  if (std::shared_ptr<FrameEntry> entry = code.entries.find(call, out_registers)) {
    ++hits_;
    if (entry->break_reason.empty()) return entry;
    if (auto other = get_further(code, *entry, function, call, out_registers)) entry = other;
    if (PyErr_Occurred()) return nullptr;
    if (!entry->break_reason.empty()) break_reasons_.add(entry->break_reason);
    return entry;
  }
  const auto plainly = [&](const std::string& reason) {
    count_plain(code, reason);
    return nullptr;
  };
  if (const std::string reason = code.entries.closed(options_.limits); !reason.empty())
    return plainly(reason);
  options_.dump->note_recompile(code.name, code.entries.plain(), call);
  const Result<std::shared_ptr<FrameEntry>> made =
      code.entries.add([&] { return capture(code, function, call); });
  if (made.ok()) {
    if (!(*made)->break_reason.empty()) break_reasons_.add((*made)->break_reason);
    if ((*made)->entry->check(call, out_registers)) return *made;
    return plainly("arguments share memory, and one of them is changed");
  }
  if (bridge::is_raised(made.status()) || raise_at_once(made.status())) return nullptr;
  const std::string& reason = made.status().message();
  options_.dump->note("breaks", "PLAIN PYTHON " + code.name + ": " + reason);
  code.entries.count_failure(reason, options_.limits);
  PyErr_Clear();  // of Python that the capture has run, such as the backward of a function
  return plainly(reason);
}

std::shared_ptr<FrameEntry> Frames::get_further(ProgramCode& code, FrameEntry& entry,
                                                PyObject* function, const CallArguments& call,
                                                guards::Registers& out_registers) {
  constexpr std::uint64_t kMostHits = 1024;
  const std::uint64_t hits = ++entry.break_hits;
  if (!entry.read_to_break || hits > kMostHits || !std::has_single_bit(hits)) return nullptr;
  guards::Registers registers;
  if (entry.read_to_break->check(call, registers)) return nullptr;
  if (!code.entries.closed(options_.limits).empty()) return nullptr;
  options_.dump->note_recompile(code.name, code.entries.plain(), call);
  const Result<std::shared_ptr<FrameEntry>> made =
      code.entries.replace(entry, [&]() -> Result<std::shared_ptr<FrameEntry>> {
        BP_ASSIGN_OR_RETURN(std::shared_ptr<FrameEntry> other, capture(code, function, call));
        if (!other->entry->check(call, registers)) return unsupported("it does not take the call");
        return other;
      });
  if (!made.ok()) {
    raise_at_once(made.status());
    return nullptr;
  }
  (*made)->break_hits = hits;
  out_registers = std::move(registers);
  return *made;
}

Result<std::shared_ptr<FrameEntry>> Frames::capture(ProgramCode& code, PyObject* function,
                                                    const CallArguments& call) {
  if (!code.original) {
    BP_ASSIGN_OR_RETURN(cpython::OriginalCode original,
                        cpython::OriginalCode::make(code.own.object()));
    if (const std::string name = find_frame_reader(original); !name.empty())
      return unsupported("the frame is looked at by " + name + "()");
    code.own = cpython::FrameCode::of(original);
    code.original = std::make_shared<const cpython::OriginalCode>(std::move(original));
  }
  auto entry = std::make_shared<FrameEntry>();
  entry->number = next_number_++;
  capture::CaptureOptions options;
  options.name = "__compiled_fn_" + std::to_string(entry->number);
  options.with_backward = at::GradMode::is_enabled();
  options.frame_code = code.own.object();
  const Ref as_code = function_like(function, code.own.held.get(), code.globals.get());
  if (!as_code) return cpython::take_python_error("Making a function");

  cpython::BreakPlan plan;
  cpython::ModifiedPrefix prefix;
  bool defers_hooks = false;
  options.take_state = [&](capture::Interpreter& interpreter, PyObject* returned) {
    defers_hooks = raises_behind_effects(interpreter.world());
    return take_state(code, interpreter, returned, plan, prefix);
  };
  capture::Stop stop;
  auto captured = capture::capture(as_code.get(), call, options, &stop);
  bool breaks = false;
  if (!captured.ok()) {
    if (!is_unsupported(captured.status().code()) || stop.point.instruction < 0)
      return captured.take_status();
    entry->break_reason = captured.status().message();
    entry->read_to_break = std::move(stop.read);
    const std::int32_t at = stop.point.instruction - code.own.base;
    if (at < 0 || !cpython::can_break_at(code.original->code, at))
      return unsupported(entry->break_reason + "; the frame cannot go on behind that");
    breaks = true;
    plan.instruction = at;
    options.break_step = stop.point.step;
    prefix = {};
    captured = capture::capture(as_code.get(), call, options);
    if (!captured.ok()) {
      if (!is_unsupported(captured.status().code())) return captured.take_status();
      return unsupported(entry->break_reason + "; no break there: " + captured.status().message());
    }
  }
  const bool has_code = (*captured)->gives_state;
  SizeRequest sizes;
  sizes.dynamic = options_.dynamic;
  sizes.is_part = breaks;
  sizes.note = [this](const std::string& reason) { options_.size_notes->add(reason); };
  sizes.capture_again = [&](const capture::Invented& invented) {
    cpython::BreakPlan other_plan = plan;
    cpython::ModifiedPrefix other_prefix;
    capture::CaptureOptions again = options;
    again.invented = &invented;
    again.take_state = [&](capture::Interpreter& interpreter, PyObject* returned) {
      return take_state(code, interpreter, returned, other_plan, other_prefix);
    };
    return capture::capture(as_code.get(), call, again);
  };
  BP_ASSIGN_OR_RETURN(
      entry->entry, Entry::make(std::move(*captured), call, std::move(sizes), *options_.programs));
  if (has_code) {
    const auto weak = std::weak_ptr<Entry>(entry->entry);
    const Ref compiled = Ref::steal(
        make_frame_callable(options.name, [=](PyObject* const*, std::size_t) -> PyObject* {
          const std::shared_ptr<Entry> held = weak.lock();
          if (!held || t_running.entry != held.get()) {
            PyErr_SetString(PyExc_RuntimeError, "called outside of the frame that it is a part of");
            return nullptr;
          }
          const cpython::HookPause pause;
          PyObject* state =
              held->run(*t_running.registers, defers_hooks ? &t_running.raised_by_hook : nullptr);
          // The frame has them still. Without a state it starts anew, as plain Python.
          if (state) t_running.values->clear();
          return state;
        }));
    if (!compiled) return cpython::take_python_error("Making a callable");
    std::vector<cpython::Emitted> emitted =
        cpython::call_with_arguments(*code.original, code.own, compiled.get());
    emitted.insert(emitted.end(), prefix.emitted.begin(), prefix.emitted.end());
    prefix.emitted = std::move(emitted);
    plan.prefix = &prefix;
    plan.make_resume_point = [&](std::int32_t target, const FrameLayout& layout) {
      return resume_point(code, target, layout);
    };
    BP_ASSIGN_OR_RETURN(entry->code, breaks ? make_broken_code(*code.original, code.own, plan)
                                            : make_straight_code(code.own, prefix.emitted));
    own_codes_.insert(reinterpret_cast<PyCodeObject*>(entry->code.get()));
    hide_from_torchdynamo(entry->code.get());
  }
  log_entry(code, *entry);
  return entry;
}

// The layout before the break, and what the graph's side must give so that the frame has it.
Result<std::vector<Ref>> Frames::take_state(const ProgramCode& code,
                                            capture::Interpreter& interpreter, PyObject* returned,
                                            cpython::BreakPlan& plan,
                                            cpython::ModifiedPrefix& prefix) {
  std::vector<Ref> state;
  std::vector<cpython::Emitted> emitted;
  capture::World& world = interpreter.world();
  if (world.autocast_left()) BP_RETURN_IF_ERROR(emit_autocast(*world.autocast_left(), emitted));
  HookStop hook_stop{capture::World::operators_called(), {}};
  if (raises_behind_effects(world)) hook_stop.raise = raise_of_hook;
  BP_RETURN_IF_ERROR(emit_effects(world.effects(), hook_stop, code.globals.get(),
                                  world.guards().sources(), state, emitted));
  const auto finish = [&] {
    if (state.empty())
      prefix.emitted.push_back({POP_TOP, 0, {}, {}});
    else
      prefix.emitted.push_back({UNPACK_SEQUENCE, static_cast<int>(state.size()), {}, {}});
    prefix.emitted.insert(prefix.emitted.end(), emitted.begin(), emitted.end());
    return state;
  };
  if (returned) {
    state.push_back(Ref::borrow(returned));
    emitted.push_back({RETURN_VALUE, 0, {}, {}});
    return finish();
  }
  const capture::RootState& root = interpreter.root();
  const cpython::OriginalCode& original = *code.original;
  const std::vector<cpython::Instruction>& instructions = original.code.instructions;
  const cpython::Instruction& breaking = instructions[static_cast<std::size_t>(plan.instruction)];
  cpython::LocalSet live(code.own.local_of.size());
  const auto add_live = [&](std::int32_t target) {
    const cpython::LocalSet& there = original.live[static_cast<std::size_t>(target)];
    for (std::size_t i = 0; i < live.size(); ++i) live[i] = live[i] || there[i];
  };
  // Before it, too: it may read locals itself.
  add_live(plan.instruction);
  if (breaking.target != cpython::kNoTarget) add_live(breaking.target);
  for (const cpython::ExceptionRange& range : original.code.exceptions)
    if (range.begin <= plan.instruction && plan.instruction < range.end) add_live(range.target);
  if (original.keeps_first_argument) live[0] = true;

  for (std::size_t i = 0; i < code.own.arguments.size(); ++i)
    if (code.own.arguments[i] < 0) emitted.push_back({DELETE_FAST, static_cast<int>(i), {}, {}});
  const VisibleEnds visible_ends(interpreter);
  plan.layout = {};
  plan.layout.bound.assign(live.size(), false);
  plan.layout.kept.assign(live.size(), false);
  std::vector<Ref> held;  // what the frame goes on with, arguments as they are among it
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (original.is_free(i)) continue;
    const auto own = static_cast<std::size_t>(code.own.local_of[i]);
    const Ref& value = root.locals[own];
    const Ref& before = interpreter.root_arguments()[own];
    plan.layout.bound[i] = static_cast<bool>(value);
    const bool is_argument = value && value.get() == before.get();
    // Of an argument nothing may have been asked: the next call may bring something else.
    plan.layout.kept[i] =
        is_argument ? !guards::is_tensor(value.get()) : visible_ends.has(value.get());
    if (!live[i] && !(value && plan.layout.kept[i])) {
      if (!is_argument && !original.is_cell(i) && visible_ends.has(before.get()))
        emitted.push_back({DELETE_FAST, static_cast<int>(own), {}, {}});
      continue;
    }
    if (!value && before) return unsupported("a break where an argument is deleted");
    if (!value) continue;
    held.push_back(value);
    if (is_argument && !may_have_changed(interpreter.world(), value.get())) continue;
    prefix.stored.push_back(static_cast<int>(i));
    state.push_back(value);
  }
  std::string attribute;
  if (breaking.opcode == LOAD_ATTR || breaking.opcode == LOAD_METHOD)
    attribute = text_of(PyTuple_GET_ITEM(original.object()->co_names,
                                         cpython::name_index(breaking.opcode, breaking.argument)));
  if (asks_for_intermediate(root.slots, attribute, held) ||
      (may_ask_for_intermediate(original.object()) && holds_intermediate(root.slots, held)))
    return unsupported("the program asks for the gradient of what it has computed with since");
  if (tells_view_without_base(original.object(), root.slots, held, world))
    return unsupported("the program can tell a view, and goes on with one without its base");
  for (const Ref& value : root.slots)
    plan.layout.slots.push_back(value ? Slot::kValue : Slot::kNull);
  for (std::size_t i = root.slots.size(); i-- > 0;)
    if (root.slots[i]) state.push_back(root.slots[i]);
  return finish();
}

Result<cpython::ResumePoint> Frames::resume_point(const ProgramCode& code, std::int32_t target,
                                                  const FrameLayout& layout) {
  const cpython::OriginalCode& original = *code.original;
  const cpython::LocalSet& live = original.live[static_cast<std::size_t>(target)];
  std::string key = std::to_string(reinterpret_cast<std::uintptr_t>(original.object())) + "/" +
                    std::to_string(reinterpret_cast<std::uintptr_t>(code.globals.get())) + "/" +
                    std::to_string(target) + "/";
  for (const Slot slot : layout.slots) key += slot == Slot::kNull ? 'n' : 'v';
  for (std::size_t i = 0; i < live.size(); ++i)
    key += layout.bound[i] && (live[i] || layout.kept[i]) ? '1' : '0';
  std::shared_ptr<ProgramCode>& known = resume_codes_[key];
  if (!known) {
    const std::int32_t offset =
        2 * original.code.instructions[static_cast<std::size_t>(target)].offset;
    const std::string name =
        "__resume_at_" + std::to_string(offset) + "_" + std::to_string(next_number_++);
    BP_ASSIGN_OR_RETURN(cpython::FrameCode own, make_resume_code(original, target, layout));
    known = std::make_shared<ProgramCode>();
    known->name = name;
    known->original = code.original;
    known->own = std::move(own);
    known->globals = code.globals;
    codes_.push_back(known);
    own_codes_.insert(known->own.object());
    hide_from_torchdynamo(known->own.held.get());
  }
  const auto weak = std::weak_ptr<ProgramCode>(known);
  Ref callable = Ref::steal(make_frame_callable(
      known->name, [weak](PyObject* const* values, std::size_t count) -> PyObject* {
        t_parked.code = weak.lock();
        if (!t_parked.code) {
          PyErr_SetString(PyExc_RuntimeError, "the compiled function that this resumes is gone");
          return nullptr;
        }
        for (std::size_t i = 0; i < count; ++i) t_parked.values.push_back(Ref::borrow(values[i]));
        return Py_NewRef(Py_None);
      }));
  if (!callable) return cpython::take_python_error("Making a callable");
  return cpython::ResumePoint{std::move(callable), known->own.arguments};
}

PyObject* Frames::run(std::shared_ptr<ProgramCode> code, std::shared_ptr<FrameEntry> entry,
                      PyObject* function, std::vector<Ref> values, guards::Registers& registers) {
  const OwnParked own_parked;
  for (;;) {
    Ref result;
    if (!entry->code) {
      const cpython::HookPause pause;
      result = Ref::steal(entry->entry->run(registers));
    } else {
      result = Ref::steal(run_modified(*entry, function, values, registers));
    }
    if (!result) {
      // The graph comes first in a frame: nothing of it has happened yet.
      const std::string refusal = entry->entry->take_refusal();
      if (refusal.empty()) return nullptr;
      count_plain(*code, refusal);
      t_parked = {};
      return run_plain(*code, function, values);
    }
    Parked parked = std::exchange(t_parked, {});
    if (!parked.code) return result.release();
    code = parked.code;
    values = std::move(parked.values);
    values.push_back(Ref::borrow(function));
    const std::vector<PyObject*> pointers = borrowed(values);
    entry =
        find_entry(*parked.code, function, {pointers.data(), pointers.size(), nullptr}, registers);
    if (!entry && PyErr_Occurred()) return nullptr;
    if (!entry) return run_plain(*parked.code, function, values);
  }
}

PyObject* Frames::run_modified(FrameEntry& entry, PyObject* function, std::vector<Ref>& values,
                               const guards::Registers& registers) {
  PyObject* globals = PyFunction_GET_GLOBALS(function);
  Ref made = entry.function;
  if (!made) {
    made = function_like(function, entry.code.get(), globals);
    if (!made) return nullptr;
    if (!PyFunction_GET_CLOSURE(function)) entry.function = made;
  }
  const RunningScope running(entry.entry.get(), &registers, &values);
  const std::vector<PyObject*> pointers = borrowed(values);
  return PyObject_Vectorcall(made.get(), pointers.data(), pointers.size() - 1, nullptr);
}

PyObject* Frames::run_plain(const ProgramCode& code, PyObject* function, std::vector<Ref>& values) {
  Result<Ref> plain = cpython::take_positions(code.own.object());
  if (!plain.ok()) {
    PyErr_SetString(PyExc_RuntimeError, plain.status().message().c_str());
    return nullptr;
  }
  const Ref made = function_like(function, plain->get(), code.globals.get());
  if (!made) return nullptr;
  const std::vector<PyObject*> pointers = borrowed(values);
  t_starting = {plain->get(), &values};
  PyObject* result = PyObject_Vectorcall(made.get(), pointers.data(), pointers.size() - 1, nullptr);
  t_starting = {};  // where it could not start
  return result;
}

void Frames::log_entry(const ProgramCode& code, const FrameEntry& entry) const {
  const std::string name = "__compiled_fn_" + std::to_string(entry.number);
  options_.dump->write_entry(name + "_" + code.name, *entry.entry, code.own.held.get(),
                             entry.code.get(), entry.break_reason);
  log_graph(name, *entry.entry);
  if (log_enabled("bytecode")) {
    log_topic("bytecode",
              "ORIGINAL BYTECODE " + code.name + "\n" + disassembly(code.own.held.get()));
    if (entry.code)
      log_topic("bytecode",
                "MODIFIED BYTECODE " + code.name + "\n" + disassembly(entry.code.get()));
  }
  log_guards(name, *entry.entry);
  if (!entry.break_reason.empty())
    options_.dump->note("breaks", "GRAPH BREAK in " + code.name + ": " + entry.break_reason +
                                      hint_for(entry.break_reason));
}

}  // namespace backplane::call
