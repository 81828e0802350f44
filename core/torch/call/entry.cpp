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
  for (const record::ArgumentInfo& argument : captured->recorded.arguments)
    entry->mutates_ = entry->mutates_ || argument.is_mutated;
  BP_ASSIGN_OR_RETURN(entry->program_, make_program(captured->recorded));
  entry->captured_ = std::move(captured);
  return entry;
}

bool Entry::inputs_overlap(const guards::Registers& registers) const {
  const auto& arguments = captured_->recorded.arguments;
  const auto tensor = [&](std::size_t i) -> const at::Tensor& {
    return THPVariable_Unpack(registers.values[captured_->inputs[i]]);
  };
  for (std::size_t a = 0; a < arguments.size(); ++a) {
    if (!arguments[a].is_mutated) continue;
    for (std::size_t b = 0; b < arguments.size(); ++b)
      if (a != b && tensor(a).has_storage() && tensor(b).has_storage() &&
          tensor(a).is_alias_of(tensor(b)))
        return true;
  }
  return false;
}

bool Entry::check(const guards::CallArguments& call, guards::Registers& out_registers) {
  return captured_->guards->check(call, out_registers) &&
         !(mutates_ && inputs_overlap(out_registers));
}

PyObject* Entry::run(const guards::Registers& registers) {
  HANDLE_TH_ERRORS
  ++hits_;
  std::vector<at::Tensor> inputs;
  inputs.reserve(captured_->inputs.size());
  for (const capture::SourceId source : captured_->inputs)
    inputs.push_back(THPVariable_Unpack(registers.values[source]));
  std::vector<c10::IValue> results;
  {
    const pybind11::gil_scoped_release no_gil;
    Result<std::vector<c10::IValue>> ran = autograd::call(program_.code, program_.sizes, inputs);
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
