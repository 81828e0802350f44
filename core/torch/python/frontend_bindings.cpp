#include "core/torch/python/frontend_bindings.h"

#include <ATen/ATen.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/cpython/bytecode/code.h"
#include "core/cpython/bytecode/rewrite.h"
#include "core/runtime/plugin/device.h"
#include "core/torch/call/compiled.h"
#include "core/torch/compiler/size_family.h"
#include "core/torch/guards/content.h"
#include "core/torch/guards/switches.h"
#include "core/torch/python/devices.h"
#include "core/torch/python/foreign_program.h"

namespace py = pybind11;

namespace backplane::python {

namespace {

// Calls `accept(function, role, cut, saved_bytes, recompute_seconds)`, which may refuse.
compiler::ProgramStore::Accept accept_by(const py::object& accept) {
  return [held = hold_object(accept)](compiler::Stage stage) -> Status {
    const py::gil_scoped_acquire gil;
    try {
      (*held)(std::move(stage.function), compiler::role_name(stage.role), std::move(stage.cut),
              stage.saved_bytes, stage.recompute_seconds);
    } catch (py::error_already_set& refusal) {
      refusal.restore();
      return {Code::kCancelled, "refused"};
    }
    return {};
  };
}

py::object compile(const py::object& target, const std::string& name, const std::string& plugin,
                   std::uint32_t device, bool strict, std::size_t entry_limit,
                   std::optional<bool> dynamic, double memory_budget, double verify,
                   bool pack_inference, bool pack_training, const py::object& accept,
                   const py::object& foreign, const std::string& dump_folder) {
  call::CompiledOptions options;
  options.name = name;
  options.strict = strict;
  options.limits.programs = entry_limit;
  options.dump_folder = dump_folder;
  if (dynamic) options.dynamic = *dynamic ? call::Dynamic::kAlways : call::Dynamic::kNever;
  compiler::CutOptions cut;  // without a device ATen runs the graph, node by node
  if (!plugin.empty()) cut.devices = find_devices({{plugin, static_cast<int>(device)}});
  cut.memory_budget = memory_budget;
  cut.verify = {verify, strict};
  cut.pack_inference = pack_inference;
  cut.pack_training = pack_training;
  const bool has_devices = !cut.devices.empty();
  options.programs = std::make_shared<call::Programs>(std::move(cut), foreign_compiler(foreign));
  if (has_devices) options.programs->accept = accept_by(accept);
  if (has_devices) options.of_programs.push_back(accept.ptr());
  if (!foreign.is_none()) options.of_programs.push_back(foreign.ptr());
  PyObject* made = call::make_compiled(target.ptr(), std::move(options));
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

call::CompiledCallable& state_of(const py::object& compiled) {
  call::CompiledCallable* state = call::find_compiled(compiled.ptr());
  if (!state) throw py::type_error("not a compiled function");
  return *state;
}

py::dict describe(const call::Entry& entry) {
  py::dict one;
  one["name"] = entry.captured().recorded.graph.name;
  one["guards"] = entry.guards_text();
  one["graph"] = entry.graph_text();
  one["nodes"] = entry.captured().recorded.graph.nodes.size();
  one["calls"] = entry.captured().recorded.call_count;
  one["inputs"] = entry.captured().inputs.size();
  one["hits"] = entry.hits();
  one["instructions"] = entry.captured().instruction_count;
  one["frames"] = entry.captured().frame_count;
  one["capture_ns"] = entry.captured().capture_ns;
  one["is_foreign"] = is_foreign(*static_cast<const autograd::CutProgram*>(entry.program()));
  one["program"] = reinterpret_cast<std::uintptr_t>(entry.program());
  return one;
}

py::list entries(const py::object& compiled) {
  py::list out;
  const call::CompiledCallable& state = state_of(compiled);
  for (const auto& entry : state.entries()) out.append(describe(*entry));
  if (!state.frames()) return out;
  for (const auto& code : state.frames()->codes())
    for (const auto& entry : code->entries.all()) {
      py::dict one = describe(*entry->entry);
      one["frame"] = code->name;
      one["code"] = py::reinterpret_borrow<py::object>(code->own.held.get());
      one["modified"] = entry->code ? py::reinterpret_borrow<py::object>(entry->code.get())
                                    : py::object(py::none());
      one["break"] = entry->break_reason;
      out.append(one);
    }
  return out;
}

void add_counts(py::dict& out, const call::ReasonCounts& counts) {
  for (const auto& [reason, count] : counts.all()) out[py::str(reason)] = count;
}

py::dict counters(const py::object& compiled) {
  const call::CompiledCallable& state = state_of(compiled);
  py::dict out, reasons, breaks, size_notes;
  add_counts(size_notes, state.size_notes());
  std::size_t entry_count = state.entries().size();
  std::unordered_set<const void*> programs;
  for (const auto& entry : state.entries()) programs.insert(entry->program());
  std::uint64_t hits = state.hits(), plain_calls = state.plain_calls();
  add_counts(reasons, state.plain_reasons());
  if (const call::Frames* frames = state.frames()) {
    add_counts(reasons, frames->plain_reasons());
    add_counts(breaks, frames->break_reasons());
    for (const auto& code : frames->codes()) {
      entry_count += code->entries.all().size();
      for (const auto& entry : code->entries.all()) programs.insert(entry->entry->program());
    }
    hits += frames->hits();
    plain_calls += frames->plain_calls();
  }
  out["entries"] = entry_count;
  out["programs"] = programs.size();
  out["hits"] = hits;
  out["plain_calls"] = plain_calls;
  out["plain_reasons"] = reasons;
  out["breaks"] = breaks;
  out["static_sizes"] = size_notes;
  return out;
}

// For measuring: the first entry, and what its guards find in a call with these arguments.
struct MeasuredCall {
  MeasuredCall(const py::object& compiled, const py::tuple& arguments) {
    const call::CompiledCallable& state = state_of(compiled);
    if (state.entries().empty()) throw py::value_error("the function has no entry");
    entry = state.entries().front();
    for (const py::handle argument : arguments) values.push_back(argument.ptr());
    check();
  }
  void check() {
    if (!entry->check({values.data(), values.size(), nullptr}, registers))
      throw py::value_error("the entry's guards do not hold for these arguments");
  }

  std::shared_ptr<call::Entry> entry;
  std::vector<PyObject*> values;
  guards::Registers registers;
};

// Seconds for one check of the guards.
double time_guards(const py::object& compiled, const py::tuple& arguments, std::size_t count) {
  MeasuredCall call(compiled, arguments);
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < count; ++i) call.check();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / static_cast<double>(count);
}

void stub_program(const py::object& compiled, const py::tuple& arguments) {
  const MeasuredCall call(compiled, arguments);
  if (const Status status = call.entry->stub_program(call.registers); !status.ok()) raise(status);
}

// What the allocator gives for a copy of `value`. Of many, since it keeps some small blocks at
// hand.
template <class Value>
std::size_t bytes_of(const Value& value) {
  constexpr std::size_t kCount = 64;
  std::vector<std::unique_ptr<const Value>> copies(2 * kCount);
  std::size_t before = 0;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (i == kCount) before = mallinfo2().uordblks;
    copies[i] = std::make_unique<const Value>(value);
  }
  return (mallinfo2().uordblks - before) / kCount;
}

// Bytes of the first entry's parts, besides Python's objects.
py::dict entry_bytes(const py::object& compiled) {
  const call::CompiledCallable& state = state_of(compiled);
  if (state.entries().empty()) throw py::value_error("the function has no entry");
  const capture::Captured& captured = state.entries().front()->captured();
  py::dict out;
  out["guards"] = bytes_of(*captured.guards);
  out["graph"] = bytes_of(captured.recorded.graph);
  out["recipe"] = bytes_of(captured.recipe);
  return out;
}

py::object reassemble(const py::object& code) {
  auto* object = reinterpret_cast<PyCodeObject*>(code.ptr());
  if (!PyCode_Check(code.ptr())) throw py::type_error("not a code object");
  Result<cpython::Code> decoded = cpython::decode(object);
  if (!decoded.ok()) throw py::value_error(decoded.status().message());
  Result<cpython::Ref> made = cpython::assemble(*decoded, cpython::CodeShape(object));
  if (!made.ok()) throw py::value_error(made.status().message());
  return py::reinterpret_steal<py::object>(made->release());
}

// The function's code with a break at the instruction at `offset` (in bytes): it runs up to there,
// and calls functions for the rest. None where it cannot be broken there.
py::object break_code(const py::object& function, int offset) {
  if (!PyFunction_Check(function.ptr())) throw py::type_error("not a function");
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function.ptr()));
  Result<cpython::OriginalCode> original = cpython::OriginalCode::make(code);
  if (!original.ok()) throw py::value_error(original.status().message());
  cpython::BreakPlan plan;
  const auto& instructions = original->code.instructions;
  while (static_cast<std::size_t>(plan.instruction) < instructions.size() &&
         2 * instructions[static_cast<std::size_t>(plan.instruction)].offset != offset)
    ++plan.instruction;
  if (static_cast<std::size_t>(plan.instruction) == instructions.size())
    throw py::value_error("no instruction at this offset");
  const auto at = static_cast<std::size_t>(plan.instruction);
  const cpython::FrameCode frame = cpython::FrameCode::of(*original);
  cpython::LocalSet arguments(static_cast<std::size_t>(code->co_nlocalsplus));
  for (const int argument : frame.arguments) arguments[static_cast<std::size_t>(argument)] = true;
  const cpython::BoundLocals bound = cpython::find_bound_locals(original->code, arguments);
  plan.layout = {cpython::find_slots(original->code)[at], bound.always[at]};
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (!original->is_free(i) && original->live[at][i] &&
        bound.always[at][i] != bound.sometimes[at][i])
      return py::none();
  if (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) return py::none();
  plan.make_resume_point = [&](std::int32_t target,
                               const cpython::FrameLayout& layout) -> Result<cpython::ResumePoint> {
    BP_ASSIGN_OR_RETURN(const cpython::FrameCode resume,
                        cpython::make_resume_code(*original, target, layout));
    cpython::Ref made = cpython::Ref::steal(
        PyFunction_New(resume.held.get(), PyFunction_GET_GLOBALS(function.ptr())));
    if (!made) return cpython::take_python_error("Making a function");
    PyObject* closure = PyFunction_GET_CLOSURE(function.ptr());
    if (closure && PyFunction_SetClosure(made.get(), closure) != 0)
      return cpython::take_python_error("Giving a function its closure");
    return cpython::ResumePoint{std::move(made), resume.arguments};
  };
  Result<cpython::Ref> made = cpython::make_broken_code(*original, frame, plan);
  if (!made.ok() && is_unsupported(made.status().code())) return py::none();
  if (!made.ok()) throw py::value_error(made.status().message());
  return py::reinterpret_steal<py::object>(made->release());
}

}  // namespace

void register_frontend(py::module_& module) {
  py::module_ own = module.def_submodule("frontend");
  own.def("compile", compile, py::arg("target"), py::arg("name"), py::arg("plugin"),
          py::arg("device"), py::arg("strict"), py::arg("entry_limit"), py::arg("dynamic"),
          py::arg("memory_budget"), py::arg("verify"), py::arg("pack_inference"),
          py::arg("pack_training"), py::arg("accept"), py::arg("foreign"), py::arg("dump_folder"));
  own.def("call_back_end", call_back_end);
  own.def("entries", entries);
  own.def("counters", counters);
  own.def("reset", [](const py::object& compiled) { state_of(compiled).reset(); });
  own.def("time_guards", time_guards, py::arg("compiled"), py::arg("arguments"), py::arg("count"));
  own.def("stub_program", stub_program, py::arg("compiled"), py::arg("arguments"));
  own.def("entry_bytes", entry_bytes);
  // For tests: the rows of the tables of what enters and of switches.
  own.def("content_rows", guards::content_rows);
  own.def("switches", [] {
    std::vector<std::string> names;
    for (const guards::Switch& row : guards::switches())
      names.push_back(std::string(row.module) + "." + row.function);
    return names;
  });
  own.def("reassemble", reassemble);
  own.def("break_code", break_code, py::arg("function"), py::arg("offset"));
}

}  // namespace backplane::python
