#include "core/torch/python/foreign_program.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/torch/bridge/held_signals.h"
#include "core/torch/compiler/cut_entry.h"
#include "core/torch/python/program_call.h"
#include "core/torch/record/replay.h"

namespace py = pybind11;

namespace backplane::python {

namespace {

py::list list_of(std::span<const at::Tensor> tensors) {
  py::list out;
  for (const at::Tensor& tensor : tensors) out.append(tensor_or_none(tensor));
  return out;
}

class ForeignProgram final : public compiler::StagedProgram {
 public:
  explicit ForeignProgram(std::shared_ptr<py::object> callable) : callable_(std::move(callable)) {}

  Result<std::vector<at::Tensor>> forward(std::span<const at::Tensor> inputs,
                                          const autograd::SizeRecord&) override {
    const py::gil_scoped_acquire gil;
    const at::AutoGradMode no_grad(false);  // nothing that the program gives has a history
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const py::object results = (*callable_)(*list_of(inputs));
    std::vector<at::Tensor> outputs;
    for (const py::handle item : py::iter(results))
      outputs.push_back(item.is_none() ? at::Tensor() : THPVariable_Unpack(item.ptr()));
    return outputs;
  }
  Result<std::vector<at::Tensor>> backward(std::vector<at::Tensor>, const std::vector<bool>&,
                                           const autograd::SizeRecord&) override {
    return Status(Code::kInternal, "a graph without gradients has no backward");
  }
  std::vector<c10::IValue> run_eagerly(std::span<const at::Tensor>) override {
    throw std::logic_error("a graph without gradients is not differentiated");
  }
  std::vector<compiler::Stage> stages() const override { return {}; }
  bool is_foreign() const override { return true; }

 private:
  std::shared_ptr<py::object> callable_;
};

Result<std::shared_ptr<compiler::StagedProgram>> make_foreign_program(
    record::Recorded recorded, const std::vector<at::Tensor>& examples, const py::object& compile) {
  const py::gil_scoped_acquire gil;
  const autograd::Signature signature = compiler::signature_of(recorded, recorded.graph);
  const std::string name = recorded.graph.name;
  const auto shared = std::make_shared<record::Recorded>(std::move(recorded));
  const py::cpp_function run = [shared](const py::list& list) {
    std::vector<at::Tensor> inputs;
    for (const py::handle item : list) inputs.push_back(THPVariable_Unpack(item.ptr()));
    std::optional<Result<record::Replayed>> replayed;
    {
      const py::gil_scoped_release no_gil;
      replayed.emplace(record::replay(shared->graph, shared->constants, inputs));
    }
    if (!replayed->ok()) throw py::value_error(replayed->status().message());
    return py::tuple(list_of((*replayed)->outputs));
  };
  try {
    py::object callable = compile(name, run, list_of(examples));
    // The back end may have taken it for an error of its own.
    if (bridge::PassedSignals::raise_again()) return Status(Code::kCancelled, "interrupted");
    auto program = std::make_shared<ForeignProgram>(hold_object(std::move(callable)));
    program->signature = signature;
    return std::shared_ptr<compiler::StagedProgram>(std::move(program));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) error.restore();
    if (bridge::PassedSignals::raise_again() || PyErr_Occurred())
      return Status(Code::kCancelled, "interrupted");
    return Status(Code::kInternal, std::string("the back end failed: ") + error.what());
  }
}

}  // namespace

compiler::ProgramStore::Foreign foreign_compiler(const py::object& compile) {
  if (compile.is_none()) return {};
  return [held = hold_object(compile)](record::Recorded recorded,
                                       const std::vector<at::Tensor>& examples) {
    return make_foreign_program(std::move(recorded), examples, *held);
  };
}

py::object call_back_end(const py::object& function, const py::object& module,
                         const py::object& examples) {
  const bridge::PassedSignals passed;
  return function(module, examples);
}

bool is_foreign(const autograd::CutProgram& program) {
  return dynamic_cast<const ForeignProgram*>(&program) != nullptr;
}

}  // namespace backplane::python
