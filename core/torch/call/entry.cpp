#include "core/torch/call/entry.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <stdexcept>
#include <utility>

#include "core/ir/text.h"

namespace backplane::call {

Result<std::unique_ptr<Entry>> Entry::make(std::unique_ptr<capture::Captured> captured,
                                           const MakeProgram& make_program) {
  std::unique_ptr<Entry> entry(new Entry);
  BP_ASSIGN_OR_RETURN(entry->program_, make_program(captured->recorded));
  entry->captured_ = std::move(captured);
  return entry;
}

std::vector<at::Tensor> Entry::inputs(const guards::Registers& registers) const {
  std::vector<at::Tensor> inputs;
  inputs.reserve(captured_->inputs.size());
  for (const capture::SourceId source : captured_->inputs)
    inputs.push_back(THPVariable_Unpack(registers.values[source]));
  return inputs;
}

bool Entry::check(const guards::CallArguments& call, guards::Registers& out_registers) {
  if (!captured_->guards->check(call, out_registers)) return false;
  const autograd::Signature& signature = program_.code->signature;
  return signature.mutated.empty() ||
         !autograd::writes_shared_memory(signature, inputs(out_registers));
}

PyObject* Entry::run(const guards::Registers& registers) {
  HANDLE_TH_ERRORS
  ++hits_;
  const std::vector<at::Tensor> tensors_in = inputs(registers);
  std::vector<c10::IValue> results;
  {
    const pybind11::gil_scoped_release no_gil;
    Result<std::vector<c10::IValue>> ran =
        autograd::call(program_.code, program_.sizes, tensors_in);
    if (!ran.ok()) throw std::runtime_error(ran.status().message());
    results = std::move(*ran);
  }
  std::vector<cpython::Ref> wrapped;
  std::vector<PyObject*> tensors;
  for (c10::IValue& result : results) {
    wrapped.push_back(cpython::Ref::steal(THPVariable_Wrap(std::move(result).toTensor())));
    tensors.push_back(wrapped.back().get());
  }
  return captured_->recipe.make(registers, tensors);
  END_HANDLE_TH_ERRORS
}

std::string Entry::graph_text() const { return ir::print(captured_->recorded.graph); }

}  // namespace backplane::call
