#include "core/torch/interpret/interpreter.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <opcode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string_view>

#include "core/cpython/bytecode/class_dict.h"
#include "core/cpython/bytecode/py_error.h"
#include "core/cpython/frame/watched.h"
#include "core/torch/bridge/held_signals.h"
#include "core/torch/interpret/frame_state.h"
#include "core/torch/record/session.h"
#include "core/torch/record/value_tensor.h"

namespace backplane::capture {

bool is_below_dispatcher() {
  const c10::DispatchKeySet excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  return excluded.has(record::kRecordKey) || excluded.has(c10::DispatchKey::Functionalize);
}

namespace {

using cpython::Ref;

constexpr std::uint64_t kMostInstructions = 100'000'000;
constexpr std::size_t kMostOperators = 50'000;

// The two functions of Python that PyErr_WarnEx() calls.
bool shows_warning_of_c(std::string_view file, std::string_view function) {
  return file.ends_with("/warnings.py") &&
         (function == "WarningMessage.__init__" || function == "_showwarnmsg");
}

// Python that C code imports and calls for itself: it looks through a class for names, which it
// keeps there, and takes apart what a match is to be replaced with.
bool serves_c_code(std::string_view file, std::string_view function) {
  if (file.ends_with("/copyreg.py")) return function == "_slotnames";
  return file.ends_with("/re/__init__.py") &&
         (function == "_subx" || function == "_subx.<locals>.filter" ||
          function == "_compile_template");
}

bool guard_under(World& world, PyTypeObject* type, PyObject* name, PyObject* function) {
  PyObject* found = _PyType_Lookup(type, name);
  if (!found) return false;
  PyObject* inside = found;
  if (Py_TYPE(found) == &PyClassMethod_Type || Py_TYPE(found) == &PyStaticMethod_Type) {
    const Ref inner = Ref::steal(PyObject_GetAttrString(found, "__func__"));
    if (!inner) PyErr_Clear();
    inside = inner.get();  // the method holds it
  }
  if (inside != function) return false;
  world.guards().guard_type_attribute(type, name, found);
  return true;
}

// A function that C code found by looking into a class: guarded as the attribute that it is.
// Wrappers that decorators make may have it among the rest.
PyObject* first_argument(const cpython::FrameContent& content) {
  const PyCodeObject* code = content.code;
  if (code->co_argcount > 0) return content.locals[0];
  if ((code->co_flags & CO_VARARGS) == 0) return nullptr;
  PyObject* rest = content.locals[code->co_kwonlyargcount];
  return rest && PyTuple_GET_SIZE(rest) > 0 ? PyTuple_GET_ITEM(rest, 0) : nullptr;
}

bool guard_as_method(World& world, const cpython::FrameContent& content) {
  PyObject* first = first_argument(content);
  PyObject* name = reinterpret_cast<PyFunctionObject*>(content.function)->func_name;
  for (PyObject* holder : {first ? reinterpret_cast<PyObject*>(Py_TYPE(first)) : nullptr,
                           first && PyType_Check(first) ? first : nullptr}) {
    if (!holder) continue;
    auto* type = reinterpret_cast<PyTypeObject*>(holder);
    if (guard_under(world, type, name, content.function)) return true;
    if (!type->tp_mro) continue;  // being made
    // Classes may hold a function under another name than its own.
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
      PyObject* dict = cpython::dict_of_class(
          reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i)));
      Py_ssize_t position = 0;
      PyObject *key, *value;
      while (PyDict_Next(dict, &position, &key, &value))
        if ((value == content.function || Py_TYPE(value) == &PyStaticMethod_Type ||
             Py_TYPE(value) == &PyClassMethod_Type) &&
            guard_under(world, type, key, content.function))
          return true;
    }
  }
  return false;
}

}  // namespace

bool is_disabled(PyObject* function) {
  PyObject* dict = PyFunction_Check(function)
                       ? reinterpret_cast<PyFunctionObject*>(function)->func_dict
                       : nullptr;
  static PyObject* const mark = PyUnicode_InternFromString("_backplane_disabled");
  return dict && PyDict_GetItemWithError(dict, mark) != nullptr;
}

std::string_view text_of(PyObject* name) {
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(name, &size);
  if (utf8) return {utf8, static_cast<std::size_t>(size)};
  PyErr_Clear();
  return {};
}

void FrameState::drop_to(int depth) {
  while (top > base + depth) Py_XDECREF(*--top);
}

const DecodedCode* Interpreter::decoded(PyCodeObject* code) {
  std::unique_ptr<DecodedCode>& slot = codes_[code];
  if (slot) return slot.get();
  Result<cpython::Code> made = cpython::decode(code);
  if (!made.ok()) {
    world_.stop(made.status().message());
    return nullptr;
  }
  slot = std::make_unique<DecodedCode>();
  slot->object = Ref::borrow(reinterpret_cast<PyObject*>(code));
  slot->code = std::move(*made);
  const auto& instructions = slot->code.instructions;
  slot->handler.assign(instructions.size(), -1);
  for (std::size_t r = 0; r < slot->code.exceptions.size(); ++r)
    for (std::int32_t i = slot->code.exceptions[r].begin; i < slot->code.exceptions[r].end; ++i)
      slot->handler[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(r);
  slot->index_at.assign(
      instructions.empty() ? 1 : static_cast<std::size_t>(instructions.back().offset) + 1, -1);
  std::int32_t next_unit = 0;
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    // Prefixes lead to the instruction behind them.
    for (std::int32_t unit = next_unit; unit <= instructions[i].offset; ++unit)
      slot->index_at[static_cast<std::size_t>(unit)] = static_cast<std::int32_t>(i);
    next_unit = instructions[i].offset + 1;
  }
  return slot.get();
}

bool Interpreter::admit_locals(const cpython::FrameContent& content) {
  PyCodeObject* code = content.code;
  PyObject* function = content.function;
  if (!world_.is_own(function) && !world_.is_outside(function)) {
    if (!guard_as_method(world_, content)) {
      world_.stop("C code calls the function " + std::string(text_of(code->co_qualname)) +
                  ", found in an unknown way");
      return false;
    }
    const Ref known = Ref::steal(world_.read_constant(function));
    if (!known) return false;
  }
  const SourceId source = world_.source_of(function);
  guards::Sources& sources = world_.guards().sources();
  PyObject* defaults = PyFunction_GET_DEFAULTS(function);
  PyObject* keyword_defaults = PyFunction_GET_KW_DEFAULTS(function);
  if (keyword_defaults && world_.effects().touches(keyword_defaults)) {
    world_.stop("the program calls a function whose defaults it has changed");
    return false;
  }
  // A function of the program may be given those of another, or any dict and tuple.
  const SourceId dict_source = keyword_defaults ? world_.source_of(keyword_defaults) : kNoSource,
                 tuple_source = defaults ? world_.source_of(defaults) : kNoSource;
  const int named = code->co_argcount + code->co_kwonlyargcount;
  const int count = named + ((code->co_flags & CO_VARARGS) != 0 ? 1 : 0) +
                    ((code->co_flags & CO_VARKEYWORDS) != 0 ? 1 : 0);
  for (int i = 0; i < count; ++i) {
    PyObject*& local = content.locals[i];
    if (!local) continue;
    PyObject* admitted = nullptr;
    SourceId from = kNoSource;
    if (i < code->co_argcount && defaults) {
      const Py_ssize_t at = i - (code->co_argcount - PyTuple_GET_SIZE(defaults));
      const bool is_default = at >= 0 && PyTuple_GET_ITEM(defaults, at) == local;
      if (is_default && source != kNoSource)
        from = sources.add(SourceKind::kDefault, source, nullptr, at);
      else if (is_default && tuple_source != kNoSource)
        from = sources.add(SourceKind::kTupleItem, tuple_source, nullptr, at);
    } else if (i >= code->co_argcount && i < named && keyword_defaults) {
      PyObject* name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
      const bool is_default = PyDict_GetItemWithError(keyword_defaults, name) == local;
      if (is_default && source != kNoSource)
        from = sources.add(SourceKind::kKeywordDefault, source, name);
      else if (is_default && dict_source != kNoSource)
        from = sources.add(SourceKind::kDictItem, dict_source, name);
    }
    // What the caller gave may be the very object that is the default: then both are guarded.
    if (from != kNoSource && !world_.is_own(local))
      admitted = world_.read(local, from);
    else
      admitted = world_.admit(Py_NewRef(local), "an argument", 2);
    if (!admitted) return false;
    Py_SETREF(local, admitted);
  }
  return true;
}

PyObject* Interpreter::evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  if (in_operator_ || is_below_dispatcher())
    return cpython::evaluate_by_default(thread, frame, throwing);
  if (const auto ran = cpython::evaluate_interruption(thread, frame, throwing)) return *ran;
  const Taker taker = taker_;
  const TakerScope scope(*this, Taker::kReader);
  cpython::UnrunFrame unrun(thread, frame);
  if (world_.stopped() || has_ended_) return world_.stop("");
  if (World::is_too_deep()) return world_.stop("the program's calls lie too deep for the C stack");
  const cpython::FrameContent content = cpython::content_of(frame);
  PyCodeObject* code = content.code;
  ++frame_count_;
  const std::string_view file = text_of(code->co_filename);
  // Behind a break the program warns again, but for what PyTorch tells only once.
  if (shows_warning_of_c(file, text_of(code->co_qualname))) {
    const record::Session* session = record::Session::current();
    if (!session || session->refusal().empty()) return world_.stop("the program warns");
    return cpython::evaluate_unhooked(thread, unrun.hand_on(), throwing);
  }
  if (serves_c_code(file, text_of(code->co_qualname)))
    return cpython::evaluate_unhooked(thread, unrun.hand_on(), throwing);
  const bool marks_modules = file.ends_with("/torch/_dynamo/mutation_guard.py");
  // TorchDynamo, once used, marks every module that is made.
  if (marks_modules && text_of(code->co_qualname) == "GenerationTracker.tag")
    return Py_NewRef(Py_None);
  if (!marks_modules && file.find("/torch/_dynamo/") != std::string_view::npos)
    return world_.stop("the program calls TorchDynamo (" + std::string(text_of(code->co_qualname)) +
                       ")");
  if (code->co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE))
    return world_.stop("the program uses coroutines");
  if (!(code->co_flags & CO_OPTIMIZED))
    return world_.stop("the program defines a class or runs a module");
  if (is_disabled(content.function))
    return world_.stop(std::string(text_of(code->co_qualname)) + " is disabled for capture");
  if (cpython::is_code_watched(code))
    return world_.stop("a debugger, profiler or coverage tool watches " +
                       std::string(text_of(code->co_qualname)));
  const DecodedCode* known = decoded(code);
  if (!known) return nullptr;
  if (!content.is_generator) {
    if (!admit_locals(content)) return nullptr;
    if (code->co_flags & CO_GENERATOR) {
      // Makes the generator and runs nothing of its body.
      PyObject* generator = cpython::evaluate_by_default(thread, unrun.hand_on(), throwing);
      if (generator) {
        world_.own(generator);
        generators_.push_back({Ref::borrow(generator), 0});
        generators_.back().held_here = Py_REFCNT(generator) - 1;
      }
      return generator;
    }
  }
  cpython::RunningFrame running(thread, unrun.hand_on());
  PyObject** base = content.locals + code->co_nlocalsplus;
  FrameState state{*this,          world_,  thread,
                   running,        content, *known,
                   content.locals, base,    base + content.stack_depth};
  if (!content.is_generator) state.top = base;
  if (!root_seen_ && content.function == root_function_) {
    root_seen_ = state.is_root = true;
    handled_before_ = thread->exc_info->exc_value;
    for (int i = 0; i < code->co_nlocalsplus; ++i)
      root_arguments_.push_back(Ref::borrow(content.locals[i]));
  }
  PyObject* result = nullptr;
  bool suspended = false;
  const Ref handled = Ref::borrow(thread->exc_info->exc_value);
  if (running.entered()) {
    const auto unit = static_cast<std::size_t>(content.first_unit);
    state.at = unit < known->index_at.size() ? static_cast<std::size_t>(known->index_at[unit]) : 0;
    state.keyword_names = nullptr;
    if (throwing && state.at > 0) --state.at;
    try {
      result = run(state, throwing != 0, suspended);
    } catch (const std::exception& error) {  // the frame is to be ended in any case
      result = world_.stop(std::string("the capture failed: ") + error.what());
    }
  }
  // A frame that ends in a handler does not get to its end.
  if (world_.stopped() || has_broken_)
    Py_XSETREF(thread->exc_info->exc_value, Py_XNewRef(handled.get()));
  if (result && taker == Taker::kReader && !world_.stopped() && !world_.expose(result)) {
    Py_CLEAR(result);
    suspended = false;
  }
  if (suspended) {
    running.suspend(state.depth());
  } else {
    state.drop_to(0);
    running.finish();
  }
  return result;
}

// Counts the steps of the outermost frame; takes its state where it is to end.
bool Interpreter::is_break(const FrameState& state) {
  root_.instruction = static_cast<std::int32_t>(state.at);
  root_.step = ++root_step_;
  if (root_step_ != break_step_) return false;
  has_broken_ = true;
  root_.handles_exception = state.thread->exc_info->exc_value != handled_before_;
  for (PyObject** slot = state.base; slot < state.top; ++slot)
    root_.slots.push_back(Ref::borrow(*slot));
  for (int i = 0; i < state.content.code->co_nlocalsplus; ++i)
    root_.locals.push_back(Ref::borrow(state.locals[i]));
  return true;
}

namespace {

bool is_suspended(PyObject* generator) {
  const Ref suspended = Ref::steal(PyObject_GetAttrString(generator, "gi_suspended"));
  if (!suspended) PyErr_Clear();
  return suspended.get() == Py_True;
}

// Not by `raise`, and not of a generator, where it has a cause.
bool is_of_an_operator(const cpython::Instruction& instruction) {
  if (instruction.opcode == RAISE_VARARGS || instruction.opcode == RERAISE) return false;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  bool is_so = type && PyErr_GivenExceptionMatches(type, PyExc_RuntimeError);
  if (is_so && value && PyExceptionInstance_Check(value))
    is_so = !Ref::steal(PyException_GetCause(value));
  PyErr_Restore(type, value, trace);
  return is_so;
}

// PyTorch's words where an operator's code asks for the values of a tensor that has none, as those
// of a recording.
bool asks_for_values() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  const Ref text = Ref::steal(value ? PyObject_Str(value) : nullptr);
  const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  const bool asks = utf8 && std::string_view(utf8).find("its data is not allocated yet") !=
                                std::string_view::npos;
  PyErr_Restore(type, value, trace);
  return asks;
}

// Every generator's own one of Python 3.12 turns StopIteration into RuntimeError.
bool is_implicit([[maybe_unused]] const cpython::Instruction& handler) {
#ifdef CALL_INTRINSIC_1
  return handler.opcode == CALL_INTRINSIC_1;
#else
  return false;
#endif
}

}  // namespace

bool Interpreter::finish_generators(bool all) {
  // Those that are made meanwhile come behind.
  for (std::size_t i = 0; i < generators_.size(); ++i) {
    const Ref generator = generators_[i].object;
    const Py_ssize_t held_here = generators_[i].held_here + 1;
    if (!all && Py_REFCNT(generator.get()) > held_here) continue;
    if (!is_suspended(generator.get())) continue;
    const Ref frame = Ref::steal(PyObject_GetAttrString(generator.get(), "gi_frame"));
    const Ref last = frame ? Ref::steal(PyObject_GetAttrString(frame.get(), "f_lasti")) : Ref();
    if (!last) return false;
    const Ref code = Ref::steal(reinterpret_cast<PyObject*>(
        PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.get()))));
    const DecodedCode* known = decoded(reinterpret_cast<PyCodeObject*>(code.get()));
    if (!known) return false;
    const auto unit = static_cast<std::size_t>(PyLong_AsLong(last.get())) / 2;
    const std::int32_t at = unit < known->index_at.size() ? known->index_at[unit] : -1;
    const std::int32_t range = at < 0 ? -1 : known->handler[static_cast<std::size_t>(at)];
    if (range < 0) continue;
    const auto target = known->code.exceptions[static_cast<std::size_t>(range)].target;
    if (is_implicit(known->code.instructions[static_cast<std::size_t>(target)])) continue;
    if (has_broken_)
      world_.stop("a generator is left inside of a try or with statement");
    else
      Ref::steal(PyObject_CallMethod(generator.get(), "close", nullptr));
    if (world_.stopped()) return false;
    PyErr_Clear();  // as PyErr_WriteUnraisable does for a generator that goes
  }
  return true;
}

void Interpreter::close_generators() {
  has_ended_ = true;
  const cpython::SavedError saved;
  for (const MadeGenerator& made : generators_) {
    if (!is_suspended(made.object.get())) continue;
    const Ref closed = Ref::steal(PyObject_CallMethod(made.object.get(), "close", nullptr));
    PyErr_Clear();
  }
}

int Interpreter::run_signal_handlers() {
  const cpython::HookPause pause;  // they are none of the program
  if (bridge::run_held_signals()) return 0;
  interruption_ = cpython::take_exception();
  cpython::set_exception(interruption_);
  return -1;
}

PyObject* Interpreter::run(FrameState& state, bool throwing, bool& out_suspended) {
  const auto& instructions = state.code.code.instructions;
  bool add_traceback = true;
  bool failed = throwing;
  for (;;) {
    if (failed || world_.stopped()) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "an error without an exception");
      // The recording's own refusals are no exceptions of the program.
      const record::Session* session = record::Session::current();
      if (!world_.stopped() && session && !session->refusal().empty())
        world_.stop(session->refusal());
      if (world_.stopped()) {
        if (stop_location_.empty()) {
          const int line = instructions[state.at].location.line;
          stop_location_ =
              std::string(text_of(state.content.code->co_filename)) + ":" + std::to_string(line);
        }
        return nullptr;
      }
      if (interruption_) return nullptr;
      if (!std::exchange(is_passed_on_, false) && is_of_an_operator(instructions[state.at])) {
        if (asks_for_values()) {
          world_.stop("an operator reads the values of its tensors");
          continue;
        }
        operator_raised_ = true;
      }
      if (add_traceback) state.running.add_traceback();
      add_traceback = true;
      failed = false;
      const std::int32_t handler = state.code.handler[state.at];
      if (handler < 0) {
        is_passed_on_ = true;
        return nullptr;
      }
      // The recording may raise where the program does not: nothing goes on behind that.
      if (std::exchange(operator_raised_, false)) {
        world_.stop("the program catches what an operator raises");
        continue;
      }
      const cpython::ExceptionRange& range =
          state.code.code.exceptions[static_cast<std::size_t>(handler)];
      state.drop_to(range.depth);
      // Where it was raised: not the instruction that raises it again.
      if (range.push_lasti) state.push(PyLong_FromLong(state.running.position()));
      Ref raised = cpython::take_exception();
      world_.own(raised.get());
      state.push(raised.release());
      state.at = static_cast<std::size_t>(range.target);
    }
    const cpython::Instruction& it = instructions[state.at];
    state.running.set_position(it.offset);
    if (state.is_root && is_break(state)) return Py_NewRef(Py_None);
    if (++instruction_count_ > kMostInstructions) {
      world_.stop("the program runs too long to be captured");
      continue;
    }
    if ((instruction_count_ & 0xfff) == 0) {
      if (run_signal_handlers() != 0) {
        failed = true;
        continue;
      }
      const record::Session* session = record::Session::current();
      if (session && session->tape.calls.size() > kMostOperators) {
        world_.stop("the program calls too many operators to be captured");
        continue;
      }
    }
    bool handled = false;
    Flow flow = Flow::kNext;
    for (const auto group : {run_stack_instruction, run_object_instruction, run_call_instruction,
                             run_build_instruction, run_exception_instruction,
                             run_match_instruction, run_version_instruction}) {
      flow = group(state, it, handled);
      if (handled) break;
    }
    if (!handled) {
      world_.stop("the program uses an instruction that is not captured: " +
                  std::to_string(it.opcode));
      continue;
    }
    if (flow != Flow::kError && flow != Flow::kReraise) {
      is_passed_on_ = false;
      if (!generators_.empty() && !finish_generators(false)) {
        failed = true;
        continue;
      }
    }
    switch (flow) {
      case Flow::kNext:
        ++state.at;
        break;
      case Flow::kJumped:
        break;
      case Flow::kReraise:
        add_traceback = false;
        failed = true;
        break;
      case Flow::kError:
        failed = true;
        break;
      case Flow::kYield:
        out_suspended = true;
        ++state.at;
        return state.pop();
      case Flow::kReturn:
        return state.pop();
    }
  }
}

}  // namespace backplane::capture
