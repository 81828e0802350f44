#include "core/torch/entry/entry.h"

#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "core/cpython/bytecode/py_error.h"
#include "core/ir/text.h"
#include "core/torch/bridge/errors.h"
#include "core/torch/entry/graph_table.h"

namespace backplane::call {

namespace {

struct StubProgram final : autograd::CutProgram {
  Result<std::vector<at::Tensor>> forward(std::span<const at::Tensor>,
                                          const autograd::SizeRecord&) override {
    return outputs;
  }
  Result<std::vector<at::Tensor>> backward(std::vector<at::Tensor>, const std::vector<bool>&,
                                           const autograd::SizeRecord&) override {
    return Status(Code::kUnsupported, "a program that is measured has no backward");
  }
  std::vector<c10::IValue> run_eagerly(std::span<const at::Tensor>) override { return {}; }

  std::vector<at::Tensor> outputs;
};

}  // namespace

Result<std::unique_ptr<Entry>> Entry::make(std::unique_ptr<capture::Captured> captured,
                                           const guards::CallArguments& call, SizeRequest request,
                                           Programs& programs) {
  std::unique_ptr<Entry> entry(new Entry);
  BP_ASSIGN_OR_RETURN(const ChosenSizes sizes, choose_sizes(*captured, call, std::move(request)));
  std::optional<Result<compiler::Program>> program;
  {
    const pybind11::gil_scoped_release no_gil;
    program.emplace(programs.store.add(captured->recorded, sizes.choice, sizes.examples,
                                       /*eager=*/nullptr, programs.accept));
  }
  if (!program->ok()) return program->take_status();
  entry->program_ = std::move(**program);
  entry->counted_ =
      autograd::counted_arguments(entry->program_.code->signature, *entry->program_.sizes);
  entry->captured_ = std::move(captured);
  return entry;
}

bool raise_at_once(const Status& status) {
  if (status.code() != Code::kWrongDevice && status.code() != Code::kOutOfMemory) return false;
  bridge::set_error("BP-0110", status);
  return true;
}

std::string find_limit(const std::vector<const Entry*>& entries, std::size_t program_limit) {
  constexpr std::size_t kMostSizes = 256;
  std::unordered_set<const void*> programs;
  for (const Entry* entry : entries) programs.insert(entry->program());
  if (programs.size() >= program_limit)
    return "no more than " + std::to_string(program_limit) + " entries are kept";
  if (entries.size() >= kMostSizes)
    return "no more than " + std::to_string(kMostSizes) + " sizes of one program are kept";
  return "";
}

bridge::BorrowedTensors Entry::inputs(const guards::Registers& registers) const {
  bridge::BorrowedTensors inputs(captured_->inputs.size());
  for (const capture::SourceId source : captured_->inputs)
    inputs.add(THPVariable_Unpack(registers.values[source]));
  return inputs;
}

bool Entry::check(const guards::CallArguments& call, guards::Registers& out_registers) {
  if (!captured_->guards->check(call, out_registers)) return false;
  const autograd::Signature& signature = program_.code->signature;
  const record::Recorded& recorded = captured_->recorded;
  if (signature.mutated.empty() && signature.counted_unwritten.empty() && !recorded.reads_offsets)
    return true;
  const bridge::BorrowedTensors borrowed = inputs(out_registers);
  const std::span<const at::Tensor> tensors = borrowed.get();
  if (recorded.reads_offsets)
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].storage_offset() != recorded.arguments[i].storage_offset) return false;
  return autograd::may_write(signature, tensors);
}

namespace {

struct DataRefusal {
  const Entry* entry = nullptr;
  std::string reason;
  bool is_of_python = false;
};
thread_local DataRefusal t_refusal;

// None is set then.
cpython::Ref as_python_exception(std::exception_ptr raised) {
  const auto set = [&]() -> PyObject* {
    HANDLE_TH_ERRORS
    std::rethrow_exception(std::move(raised));
    END_HANDLE_TH_ERRORS
  };
  set();
  return cpython::take_exception();
}

}  // namespace

std::string Entry::take_refusal() {
  DataRefusal last = std::exchange(t_refusal, {});
  if (last.entry != this) return {};
  // What is no Exception, such as KeyboardInterrupt, is no operator's; nor are the plugin's errors.
  if (last.is_of_python &&
      (!PyErr_ExceptionMatches(PyExc_Exception) || bridge::is_backplane_error()))
    return {};
  PyErr_Clear();
  return std::move(last.reason);
}

PyObject* Entry::run(const guards::Registers& registers, cpython::Ref* out_raised_by_hook) {
  HANDLE_TH_ERRORS
  t_refusal.entry = nullptr;
  ++hits_;
  // Another thread may let go of objects while this one runs without the GIL: those that the run
  // and what follows it read are held. The tensors that it copies have a reference of C++, whose
  // first and last count need the GIL.
  c10::SmallVector<cpython::Ref, 32> held;
  for (const std::vector<capture::SourceId>* sources :
       {&std::as_const(captured_->inputs), &captured_->recipe.sources()})
    for (const capture::SourceId source : *sources)
      held.push_back(cpython::Ref::borrow(registers.values[source]));
  const bridge::BorrowedTensors borrowed = inputs(registers);
  const std::span<const at::Tensor> tensors_in = borrowed.get();
  c10::SmallVector<at::Tensor, 8> counted;
  for (const std::uint32_t argument : counted_) counted.push_back(tensors_in[argument]);
  std::vector<c10::IValue> results;
  std::exception_ptr raised_by_hook;
  {
    const pybind11::gil_scoped_release no_gil;
    Result<std::vector<c10::IValue>> ran = [&] {
      try {
        return autograd::call(program_.code, program_.sizes, tensors_in,
                              autograd::Errors::kRunAgain,
                              out_raised_by_hook ? &raised_by_hook : nullptr);
      } catch (const c10::OutOfMemoryError&) {
        throw;
      } catch (const std::exception& error) {
        if (!autograd::take_forward_failure()) throw;
        // Raised once more where the program stands then, which may catch it.
        const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
        const bool is_of_python = dynamic_cast<const python_error*>(&error) != nullptr ||
                                  dynamic_cast<const pybind11::error_already_set*>(&error);
        if (is_of_python && program_.code->is_foreign()) throw;
        t_refusal = {this,
                     is_of_python
                         ? "an operator of the program raised an error"
                         : std::string("PyTorch raised an error: ") +
                               (of_torch ? of_torch->what_without_backtrace() : error.what()),
                     is_of_python};
        throw;
      }
    }();
    if (!ran.ok()) {
      if (bridge::refuses_data(ran.status()))
        t_refusal = {this, "the plugin refused the data: " + ran.status().message()};
      if (bridge::lost_device(ran.status()))
        t_refusal = {this, "the device was lost: " + ran.status().message()};
      bridge::raise_error("BP-0108", ran.status());
    }
    results = std::move(*ran);
  }
  if (raised_by_hook) *out_raised_by_hook = as_python_exception(std::move(raised_by_hook));
  c10::SmallVector<cpython::Ref, 8> wrapped;
  c10::SmallVector<PyObject*, 8> tensors;
  for (c10::IValue& result : results) {
    wrapped.push_back(cpython::Ref::steal(THPVariable_Wrap(std::move(result).toTensor())));
    tensors.push_back(wrapped.back().get());
  }
  return bridge::checked(captured_->recipe.make(registers, tensors));
  END_HANDLE_TH_ERRORS
}

Status Entry::stub_program(const guards::Registers& registers) {
  auto stub = std::make_shared<StubProgram>();
  stub->signature = program_.code->signature;
  BP_ASSIGN_OR_RETURN(stub->outputs,
                      program_.code->forward(inputs(registers).get(), *program_.sizes));
  program_.code = std::move(stub);
  return {};
}

std::string Entry::graph_table() const {
  std::vector<std::string> sources;
  for (const capture::SourceId source : captured_->inputs)
    sources.push_back(captured_->guards->sources().text(source));
  return call::graph_table(captured_->recorded, sources);
}

std::string Entry::graph_text() const { return ir::print(captured_->recorded.graph); }

}  // namespace backplane::call
