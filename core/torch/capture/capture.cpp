#include "core/torch/capture/capture.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

#include "core/cpython/bytecode/py_error.h"
#include "core/cpython/frame/hook.h"
#include "core/cpython/frame/watched.h"
#include "core/torch/interpret/interpreter.h"
#include "core/torch/record/escape.h"
#include "core/torch/record/session.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

Status unsupported(std::string what) { return Status(Code::kUnsupported, std::move(what)); }

// Finalizers of objects that have nothing to do with the program must not run inside of it.
class PausedCollector {
 public:
  PausedCollector() {
    if (g_count++ == 0) g_was_on = PyGC_Disable() != 0;
  }
  ~PausedCollector() {
    if (--g_count == 0 && g_was_on) PyGC_Enable();
  }
  PausedCollector(const PausedCollector&) = delete;
  PausedCollector& operator=(const PausedCollector&) = delete;

 private:
  // Captures of several threads overlap; all under the GIL.
  static inline int g_count = 0;
  static inline bool g_was_on = false;
};

}  // namespace

Status check_interpreter() {
  if (cpython::is_thread_watched(PyThreadState_Get()))
    return unsupported("a debugger, profiler or coverage tool watches the program");
  return {};
}

namespace {

// Sets of context variables end with it.
class OwnContext {
 public:
  OwnContext()
      : before_(Ref::steal(PyContext_CopyCurrent())), own_(Ref::steal(PyContext_CopyCurrent())) {
    if (own_ && PyContext_Enter(own_.get()) != 0) own_ = {};
  }
  ~OwnContext() {
    if (own_ && PyContext_Exit(own_.get()) != 0) PyErr_Clear();
  }
  OwnContext(const OwnContext&) = delete;
  OwnContext& operator=(const OwnContext&) = delete;

  bool is_unchanged() const {
    const int equal =
        own_ && before_ ? PyObject_RichCompareBool(before_.get(), own_.get(), Py_EQ) : 0;
    if (equal < 0) PyErr_Clear();
    return equal == 1;
  }

 private:
  Ref before_, own_;
};

class ClosedGenerators {
 public:
  explicit ClosedGenerators(Interpreter& interpreter) : interpreter_(interpreter) {}
  ~ClosedGenerators() { interpreter_.close_generators(); }
  ClosedGenerators(const ClosedGenerators&) = delete;
  ClosedGenerators& operator=(const ClosedGenerators&) = delete;

 private:
  Interpreter& interpreter_;
};

class Run {
 public:
  Run(PyObject* target, const guards::CallArguments& call, const CaptureOptions& options,
      Captured& out)
      : target_(target), call_(call), options_(options), out_(out) {}

  // Runs inside of the recording.
  std::vector<c10::IValue> operator()(const std::vector<at::Tensor>&) {
    const pybind11::gil_scoped_acquire gil;
    const PausedCollector paused;
    const AutocastState autocast = AutocastState::current();
    World world(*out_.guards, [this, add = record::Session::current()->add_argument](
                                  const at::Tensor& real) { return add(stand_in_for(real)); });
    world.begin_in_inference(in_inference_);
    Interpreter interpreter(world);
    if (options_.invented) interpreter.take_sample();
    std::vector<c10::IValue> results;
    {
      const cpython::Region region(interpreter);
      const ClosedGenerators closed(interpreter);
      const OwnContext context;
      if (options_.frame_code) {
        interpreter.watch_root(target_, options_.break_step);
        world.defer_effects();
      }
      Ref returned = Ref::steal(options_.frame_code ? call_frame(world, interpreter)
                                                    : call(world, interpreter));
      if (!returned || !interpreter.finish_generators() || !interpreter.settle_locks())
        fail(world, interpreter);
      const AutocastState left = AutocastState::current();
      const bool leaves_autocast = left != autocast;
      if (leaves_autocast && !options_.frame_code)
        throw std::runtime_error("the program leaves autocast otherwise than it was");
      if (leaves_autocast) world.leave_autocast(left);
      const bool has_effects = leaves_autocast || !world.effects().all().empty();
      if (options_.frame_code && (options_.break_step != 0 || has_effects)) {
        returned = state_of(world, interpreter, returned.get());
        out_.gives_state = true;
      }
      if (!context.is_unchanged() || interpreter.leaves_variable_set())
        throw std::runtime_error("the program leaves a context variable set");
      if (const Status status = out_.recipe.take(world, returned.get()); !status.ok())
        throw std::runtime_error(status.message());
      if (!world.settle()) fail(world, interpreter);
    }
    for (const at::Tensor& tensor : out_.recipe.take_tensors()) results.emplace_back(tensor);
    for (const InputTensor& input : world.inputs()) {
      out_.guards->load(input.source);
      out_.inputs.push_back(input.source);
      // The exact class: THPVariable_CheckExact takes a parameter for a plain tensor.
      out_.is_parameter.push_back(reinterpret_cast<PyObject*>(Py_TYPE(input.real.get())) !=
                                  THPVariableClass);
    }
    out_.instruction_count = interpreter.instruction_count();
    out_.frame_count = interpreter.frame_count();
    out_.has_checkpointed = interpreter.has_checkpointed();
    return results;
  }

  bool interrupted() const { return interrupted_; }
  const StopPoint& stop_point() const { return stop_point_; }
  // Why the program was stopped, with its line; empty where it was not.
  const std::string& stop_reason() const { return stop_reason_; }
  bool wants_another() const { return wants_another_; }

 private:
  // Calls the function so that its frame starts with the values of the call.
  PyObject* call_frame(World& world, Interpreter& interpreter) {
    guards::Sources& sources = world.guards().sources();
    const PyCodeObject* code = options_.frame_code;
    std::vector<Ref> held;
    std::vector<PyObject*> arguments;
    Ref names = Ref::steal(PyList_New(0));
    const auto add = [&](PyObject* value, SourceId source) {
      held.push_back(Ref::steal(world.read(value, source)));
      if (held.back()) replace_number(held.back(), sources[source]);
      if (held.back()) arguments.push_back(held.back().get());
      return static_cast<bool>(held.back());
    };
    const auto source_of = [&](int local) {
      return sources.add(SourceKind::kPositional, kNoSource,
                         PyTuple_GET_ITEM(code->co_localsplusnames, local), local);
    };
    const auto at = [&](int local) { return call_.values[static_cast<std::size_t>(local)]; };
    const bool has_rest = (code->co_flags & CO_VARARGS) != 0;
    const int named_end = code->co_argcount + code->co_kwonlyargcount;
    const auto function_at = static_cast<int>(call_.positional_count) - 1;
    world.know_frame_function(target_, source_of_function(sources, function_at));
    for (int i = 0; i < code->co_argcount; ++i)
      if (!add(at(i), source_of(i))) return nullptr;
    if (has_rest) {
      PyObject* rest = at(named_end);
      const SourceId source = source_of(named_end);
      world.guards().guard_length(source, PyTuple_GET_SIZE(rest));
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rest); ++i)
        if (!add(PyTuple_GET_ITEM(rest, i),
                 sources.add(SourceKind::kTupleItem, source, nullptr, i)))
          return nullptr;
    }
    const std::size_t positional = arguments.size();
    for (int i = code->co_argcount; i < named_end; ++i) {
      if (!add(at(i), source_of(i))) return nullptr;
      PyList_Append(names.get(), PyTuple_GET_ITEM(code->co_localsplusnames, i));
    }
    if (code->co_flags & CO_VARKEYWORDS) {
      const int local = named_end + (has_rest ? 1 : 0);
      const SourceId source = source_of(local);
      world.guards().guard_keys(source, at(local));
      Py_ssize_t position = 0;
      PyObject *key, *value;
      while (PyDict_Next(at(local), &position, &key, &value)) {
        if (!add(value, sources.add(SourceKind::kDictItem, source, key))) return nullptr;
        PyList_Append(names.get(), key);
      }
    }
    names = Ref::steal(PyList_AsTuple(names.get()));
    return interpreter.call(target_, arguments.data(), positional,
                            PyTuple_GET_SIZE(names.get()) ? names.get() : nullptr);
  }

  static SourceId source_of_function(guards::Sources& sources, int index) {
    static PyObject* const name = PyUnicode_InternFromString("<function>");
    return sources.add(SourceKind::kPositional, kNoSource, name, index);
  }

  Ref state_of(World& world, Interpreter& interpreter, PyObject* returned) {
    const bool is_break = options_.break_step != 0;
    if (interpreter.has_broken() != is_break)
      throw std::runtime_error("the program took another way when it was captured again");
    if (interpreter.root().handles_exception)
      throw std::runtime_error("a break where an exception is being handled");
    Result<std::vector<Ref>> values =
        options_.take_state(interpreter, is_break ? nullptr : returned);
    if (!values.ok()) throw std::runtime_error(values.status().message());
    Ref state = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(values->size())));
    for (std::size_t i = 0; i < values->size(); ++i)
      PyTuple_SET_ITEM(state.get(), static_cast<Py_ssize_t>(i), (*values)[i].release());
    world.own(state.get());
    return state;
  }

  PyObject* call(World& world, Interpreter& interpreter) {
    guards::Sources& sources = world.guards().sources();
    const Ref target = Ref::steal(world.read_constant(target_));
    if (!target) return nullptr;
    const std::size_t named =
        call_.keyword_names ? static_cast<std::size_t>(PyTuple_GET_SIZE(call_.keyword_names)) : 0;
    std::vector<Ref> held;
    std::vector<PyObject*> arguments;
    for (std::size_t i = 0; i < call_.positional_count + named; ++i) {
      const bool is_named = i >= call_.positional_count;
      const auto index = static_cast<std::int64_t>(is_named ? i - call_.positional_count : i);
      PyObject* name = is_named ? PyTuple_GET_ITEM(call_.keyword_names, index) : parameter_name(i);
      const SourceId source = sources.add(is_named ? SourceKind::kKeyword : SourceKind::kPositional,
                                          kNoSource, name, index);
      held.push_back(Ref::steal(world.read(call_.values[i], source)));
      if (held.back()) replace_number(held.back(), sources[source]);
      if (!held.back()) return nullptr;
      arguments.push_back(held.back().get());
    }
    return interpreter.call(target.get(), arguments.data(), call_.positional_count,
                            call_.keyword_names);
  }

  const at::Tensor& stand_in_for(const at::Tensor& real) const {
    if (!options_.invented) return real;
    const auto found = options_.invented->tensors.find(real.unsafeGetTensorImpl());
    return found == options_.invented->tensors.end() ? real : found->second;
  }

  // `value`: of an argument; null with an error set where none can be made.
  void replace_number(Ref& value, const guards::Source& source) const {
    if (!options_.invented || source.parent != kNoSource) return;
    const bool is_named = source.kind == SourceKind::kKeyword;
    const auto found = options_.invented->numbers.find(static_cast<std::size_t>(source.index) +
                                                       (is_named ? call_.positional_count : 0));
    if (found != options_.invented->numbers.end())
      value = Ref::steal(PyLong_FromLongLong(found->second));
  }

  // What the program calls its positional argument; for messages.
  PyObject* parameter_name(std::size_t index) const {
    if (!PyFunction_Check(target_)) return nullptr;
    const auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(target_));
    return static_cast<int>(index) < code->co_argcount
               ? PyTuple_GET_ITEM(code->co_localsplusnames, static_cast<Py_ssize_t>(index))
               : nullptr;
  }

  [[noreturn]] void fail(const World& world, const Interpreter& interpreter) {
    wants_another_ = interpreter.wants_another();
    if (PyObject* const raised = interpreter.interruption()) {
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised)), raised);
      interrupted_ = true;
      throw std::runtime_error("interrupted");
    }
    if (world.stopped()) {
      PyErr_Clear();
      stop_point_ = interpreter.stop_point();
      const std::string& where = interpreter.stop_location();
      stop_reason_ = world.reason() + (where.empty() ? "" : " (" + where + ")");
      throw std::runtime_error(stop_reason_);
    }
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
      const cpython::Ref interruption = cpython::take_exception();
      interrupted_ = !interpreter.has_raised(interruption.get());
      cpython::set_exception(interruption);
      if (interrupted_) throw std::runtime_error("interrupted");  // the error stays set
    }
    // The recording's own refusals come through Python as RuntimeError; record() knows them.
    throw std::runtime_error(
        cpython::take_python_error("Running the program for capture").message());
  }

  PyObject* target_;
  const guards::CallArguments& call_;
  const CaptureOptions& options_;
  Captured& out_;
  StopPoint stop_point_;
  std::string stop_reason_;
  bool interrupted_ = false, wants_another_ = false;
  const bool in_inference_ = c10::InferenceMode::is_enabled();
};

Result<std::unique_ptr<Captured>> capture_once(PyObject* target, const guards::CallArguments& call,
                                               const CaptureOptions& options, Stop* out_stop,
                                               bool& out_wants_another) {
  auto captured = std::make_unique<Captured>();
  captured->guards = std::make_unique<guards::GuardProgram>(call);
  const bool had_grad = at::GradMode::is_enabled();
  const guards::ThreadState before = guards::ThreadState::current();
  const KeptAutocast autocast;
  Run run(target, call, options, *captured);
  record::RecordOptions recording;
  recording.name = options.name;
  recording.with_backward = options.with_backward;
  std::optional<Result<record::Recorded>> recorded;
  {
    const pybind11::gil_scoped_release no_gil;
    recorded.emplace(record::record(std::ref(run), {}, recording));
  }
  at::GradMode::set_enabled(had_grad);
  const guards::ThreadState after = guards::ThreadState::current();
  out_wants_another = run.wants_another();
  if (run.interrupted()) return Status(Code::kCancelled, "interrupted");
  if (out_stop && !recorded->ok()) {
    captured->guards->finish();
    *out_stop = {run.stop_point(), std::move(captured->guards)};
  }
  // The recording's own reason has no line of the program.
  if (!recorded->ok() && !run.stop_reason().empty()) return unsupported(run.stop_reason());
  if (!recorded->ok()) return recorded->take_status();
  captured->recorded = std::move(**recorded);
  captured->recorded.recomputes = captured->has_checkpointed;
  for (std::size_t i = 0; i < captured->is_parameter.size(); ++i)
    if (captured->is_parameter[i]) {
      ir::Graph& graph = captured->recorded.graph;
      graph.values[graph.inputs[captured->recorded.arguments[i].graph_input]].is_static = true;
    }
  if (!(after == before))
    return unsupported("the program leaves a switch of the thread: " + before.explain(after));
  // Fails only where a path does not lead to what was read, which no call could then use.
  if (std::string failing = captured->guards->explain(call); !failing.empty())
    return unsupported("a guard fails on the call that it was made from: " + failing);
  captured->guards->finish();
  return captured;
}

}  // namespace

Result<std::unique_ptr<Captured>> capture(PyObject* target, const guards::CallArguments& call,
                                          const CaptureOptions& options, Stop* out_stop) {
  const auto start = std::chrono::steady_clock::now();
  BP_RETURN_IF_ERROR(check_interpreter());
  BP_RETURN_IF_ERROR(record::guard_escapes());
  for (;;) {
    bool wants_another = false;
    auto captured = capture_once(target, call, options, out_stop, wants_another);
    if (!captured.ok() && wants_another && captured.status().code() != Code::kCancelled) continue;
    if (captured.ok())
      (*captured)->capture_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                    std::chrono::steady_clock::now() - start)
                                    .count();
    return captured;
  }
}

}  // namespace backplane::capture
