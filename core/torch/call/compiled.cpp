#include "core/torch/call/compiled.h"

#include <torch/csrc/jit/frontend/tracer.h>

#include <utility>

#include "core/base/log.h"
#include "core/torch/bridge/errors.h"
#include "core/torch/interpret/interpreter.h"
#include "core/torch/record/session.h"

namespace backplane::call {

namespace {

using cpython::Ref;
using guards::CallArguments;

// Registers for one call of the thread, so that a call allocates none; a call inside of another
// gets its own.
class ScratchRegisters {
 public:
  ScratchRegisters() : is_shared_(!t_used) {
    if (is_shared_) t_used = true;
  }
  ~ScratchRegisters() {
    get().owned.clear();
    if (is_shared_) t_used = false;
  }
  ScratchRegisters(const ScratchRegisters&) = delete;
  ScratchRegisters& operator=(const ScratchRegisters&) = delete;

  guards::Registers& get() { return is_shared_ ? t_shared : own_; }

 private:
  static thread_local bool t_used;
  static thread_local guards::Registers t_shared;

  bool is_shared_;
  guards::Registers own_;
};

thread_local bool ScratchRegisters::t_used = false;
thread_local guards::Registers ScratchRegisters::t_shared;

// The code that a call of the object begins with; borrowed, null where it has none of Python.
PyObject* code_of(PyObject* target) {
  while (PyMethod_Check(target)) target = PyMethod_GET_FUNCTION(target);
  if (PyFunction_Check(target)) return PyFunction_GET_CODE(target);
  PyObject* forward =
      _PyType_Lookup(Py_TYPE(target), Ref::steal(PyUnicode_FromString("forward")).get());
  return forward && PyFunction_Check(forward) ? PyFunction_GET_CODE(forward) : nullptr;
}

// The code behind decorators (`__wrapped__`), such as those of an optimizer's step; null where none
// is found, as where they go round in a circle.
Ref code_behind_decorators(PyObject* target) {
  constexpr int kMaxDecorators = 64;
  for (int i = 0; i < kMaxDecorators; ++i) {
    while (PyMethod_Check(target)) target = PyMethod_GET_FUNCTION(target);
    PyObject* attributes =
        PyFunction_Check(target) ? reinterpret_cast<PyFunctionObject*>(target)->func_dict : nullptr;
    PyObject* wrapped = attributes ? PyDict_GetItemString(attributes, "__wrapped__") : nullptr;
    if (!wrapped) return Ref::borrow(code_of(target));
    target = wrapped;
  }
  return {};
}

}  // namespace

CompiledCallable::CompiledCallable(PyObject* target, CompiledOptions options)
    : target_(Ref::borrow(target)),
      options_(std::move(options)),
      dump_(std::make_shared<Dump>(options_.dump_folder, options_.name)) {}

void CompiledCallable::reset() {
  entries_.clear();
  plain_reasons_ = {};
  frames_.reset();
  *size_notes_ = {};
  plain_calls_ = 0;
}

void CompiledCallable::show_refs(cpython::OwnedRefs& out) const {
  out.show(target_);
  out.show(entries_);
  out.show(frames_);
  for (PyObject* object : options_.of_programs) out.show_borrowed(object);
}

PyObject* CompiledCallable::call_plainly(const CallArguments& call, const std::string& reason) {
  ++plain_calls_;
  plain_reasons_.add(reason);
  return PyObject_Vectorcall(target_.get(), call.values, call.positional_count, call.keyword_names);
}

PyObject* CompiledCallable::run(Entry& entry, const guards::Registers& registers,
                                const CallArguments& call) {
  PyObject* result = entry.run(registers);
  if (result || options_.strict) return result;
  const std::string refusal = entry.take_refusal();
  return refusal.empty() ? nullptr : call_plainly(call, refusal);
}

PyObject* CompiledCallable::call_uncaptured(const CallArguments& call, const std::string& reason) {
  if (!options_.strict) return call_plainly(call, reason);
  bridge::set_error("BP-0105",
                    Status(Code::kUnsupported, options_.name + " cannot be captured: " + reason +
                                                   ". Without strict it runs as plain "
                                                   "Python"));
  return nullptr;
}

PyObject* CompiledCallable::call_in_frames(const CallArguments& call) {
  // Held: the program may reset the function that it runs in.
  const std::shared_ptr<Frames> frames = frames_;
  const cpython::Region region(*frames);
  return PyObject_Vectorcall(target_.get(), call.values, call.positional_count, call.keyword_names);
}

Result<std::shared_ptr<Entry>> CompiledCallable::capture(const CallArguments& call) {
  capture::CaptureOptions options;
  options.name = options_.name + "_" + std::to_string(capture_count_++);
  options.with_backward = at::GradMode::is_enabled();
  BP_ASSIGN_OR_RETURN(auto captured, capture::capture(target_.get(), call, options));
  SizeRequest sizes;
  sizes.dynamic = options_.dynamic;
  sizes.note = [this](const std::string& reason) { size_notes_->add(reason); };
  sizes.capture_again = [&](const capture::Invented& invented) {
    capture::CaptureOptions again = options;
    again.invented = &invented;
    return capture::capture(target_.get(), call, again);
  };
  BP_ASSIGN_OR_RETURN(std::shared_ptr<Entry> entry,
                      Entry::make(std::move(captured), call, std::move(sizes), *options_.programs));
  log_graph(options.name, *entry);
  log_guards(options.name, *entry);
  dump_->write_entry(options.name, *entry, code_of(target_.get()), nullptr, "");
  return entry;
}

PyObject* CompiledCallable::call(const CallArguments& call) {
  if (capture::is_below_dispatcher()) [[unlikely]]
    return call_uncaptured(call, "PyTorch's dispatcher calls it, from a __torch_dispatch__");
  if (torch::jit::tracer::isTracing()) [[unlikely]]
    return call_uncaptured(call, "torch.jit.trace is tracing it");
  ScratchRegisters scratch;
  guards::Registers& registers = scratch.get();
  if (const std::shared_ptr<Entry> entry = entries_.find(call, registers))
    return run(*entry, registers, call);
  if (frames_) return call_in_frames(call);
  if (const std::string reason = entries_.closed(options_.limits); !reason.empty())
    return call_plainly(call, reason);
  dump_->note_recompile(options_.name, entries_.plain(), call);
  const Result<std::shared_ptr<Entry>> made = entries_.add([&] { return capture(call); });
  if (made.ok()) {
    if ((*made)->check(call, registers)) return run(**made, registers, call);
    return call_plainly(call, "arguments share memory, and one of them is changed");
  }
  if (bridge::is_raised(made.status()) || raise_at_once(made.status())) return nullptr;
  const std::string& reason = made.status().message();
  const bool has_failed = !is_unsupported(made.status().code());
  if (options_.strict) {
    const char* what = has_failed ? " cannot be compiled: " : " cannot be captured as a whole: ";
    bridge::set_error(
        has_failed ? "BP-0106" : "BP-0105",
        Status(has_failed ? Code::kInternal : Code::kUnsupported,
               options_.name + what + reason + ". Without strict it runs as plain Python"));
    return nullptr;
  }
  if (has_failed) {
    log(LogLevel::kWarning, options_.name + " runs as plain Python: " + reason);
    entries_.count_failure(reason, options_.limits);
    return call_plainly(call, reason);
  }
  dump_->note("breaks", "NOT CAPTURED AS A WHOLE " + options_.name + ": " + reason);
  FrameOptions frames;
  frames.name = options_.name;
  frames.target = code_behind_decorators(target_.get());
  frames.limits = options_.limits;
  frames.dump = dump_;
  frames.dynamic = options_.dynamic;
  frames.size_notes = size_notes_;
  frames.programs = options_.programs;
  frames_ = std::make_shared<Frames>(std::move(frames));
  return call_in_frames(call);
}

}  // namespace backplane::call
