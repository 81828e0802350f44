#include "core/torch/call/entry.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <utility>

#include "core/ir/text.h"

namespace backplane::call {

namespace {

using record::OutputKind;

Status unsupported(const char* what) { return Status(Code::kUnsupported, what); }

// Elements from the first to the last that the strides reach; 0 where there are none.
std::int64_t extent(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return last + 1;
}

}  // namespace

Result<std::unique_ptr<Entry>> Entry::make(std::unique_ptr<capture::Captured> captured,
                                           const MakeRunner& make_runner) {
  std::unique_ptr<Entry> entry(new Entry);
  entry->captured_ = std::move(captured);
  BP_RETURN_IF_ERROR(entry->plan_outputs());
  const record::Recorded& recorded = entry->captured_->recorded;
  bool has_tangents = false;
  for (const record::OutputInfo& output : recorded.outputs)
    has_tangents = has_tangents || output.tangent != record::kAbsent;
  if (has_tangents) {
    BP_ASSIGN_OR_RETURN(entry->differentiable_, DifferentiableGraph::make(recorded, make_runner));
  } else {
    BP_ASSIGN_OR_RETURN(entry->runner_,
                        make_runner(recorded.graph, recorded.constants, GraphRole::kInference));
  }
  return entry;
}

Status Entry::plan_outputs() {
  const record::Recorded& recorded = captured_->recorded;
  for (const record::ArgumentInfo& argument : recorded.arguments) {
    mutates_ = mutates_ || argument.is_mutated;
    if (argument.new_value_requires_grad)
      return unsupported("a tensor from outside is changed in a way that gradients flow through");
  }
  for (const record::OutputInfo& output : recorded.outputs) {
    views_.emplace_back();
    if (output.kind == OutputKind::kViewOfArgument) {
      views_.back() = View{true, output.base, output.storage_offset};
    } else if (output.kind == OutputKind::kViewOfOutput) {
      const record::OutputInfo& base = recorded.outputs[output.base];
      const std::int64_t offset = output.storage_offset - base.storage_offset;
      if (base.kind != OutputKind::kFresh || offset < 0 ||
          offset + extent(output.sizes, output.strides) > extent(base.sizes, base.strides))
        return unsupported("two results share memory that neither covers");
      views_.back() = View{false, output.base, offset};
    } else if (output.kind != OutputKind::kFresh) {
      return unsupported("a result is an argument that the program gave out under another name");
    }
  }
  return {};
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
  const record::Recorded& recorded = captured_->recorded;
  std::vector<at::Tensor> inputs;
  inputs.reserve(captured_->inputs.size());
  for (const capture::SourceId source : captured_->inputs)
    inputs.push_back(THPVariable_Unpack(registers.values[source]));
  std::vector<at::Tensor> results;
  {
    const pybind11::gil_scoped_release no_gil;
    Result<std::vector<at::Tensor>> ran =
        differentiable_ ? differentiable_->run(inputs, differentiable_) : runner_(inputs);
    if (!ran.ok()) throw std::runtime_error(ran.status().message());
    const auto base_of = [&](const at::Tensor& base, std::size_t i) {
      return recorded.outputs[i].requires_grad ? base : base.detach();
    };
    for (std::size_t i = 0; i < recorded.outputs.size(); ++i) {
      const record::OutputInfo& output = recorded.outputs[i];
      at::Tensor result;
      if (!views_[i])
        result = (*ran)[output.graph_output];
      else if (views_[i]->of_input)
        result = base_of(inputs[views_[i]->base], i)
                     .as_strided(output.sizes, output.strides, views_[i]->offset);
      else
        result = base_of(results[views_[i]->base], i)
                     .as_strided(output.sizes, output.strides,
                                 results[views_[i]->base].storage_offset() + views_[i]->offset);
      results.push_back(std::move(result));
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (std::size_t i = 0; i < recorded.arguments.size(); ++i)
      if (recorded.arguments[i].is_mutated) {
        inputs[i].copy_((*ran)[recorded.arguments[i].new_value]);
        inputs[i].unsafeGetTensorImpl()->bump_version();
      }
  }
  std::vector<cpython::Ref> wrapped;
  std::vector<PyObject*> tensors;
  for (at::Tensor& result : results) {
    wrapped.push_back(cpython::Ref::steal(THPVariable_Wrap(std::move(result))));
    tensors.push_back(wrapped.back().get());
  }
  return captured_->recipe.make(registers, tensors);
  END_HANDLE_TH_ERRORS
}

std::string Entry::graph_text() const { return ir::print(captured_->recorded.graph); }

}  // namespace backplane::call
