// A captured graph without gradients, compiled by a TorchDynamo back end: a Python function.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "core/base/status.h"
#include "core/torch/compiler/cut_entry.h"
#include "core/torch/record/recorder.h"

namespace backplane::python {

// `compile(name, run, examples)` gives a callable of tensors; `run` runs the graph with a list of
// them. Takes the GIL. `examples`: what the call gave the graph.
Result<std::shared_ptr<compiler::StagedProgram>> make_foreign_program(
    record::Recorded recorded, const std::vector<at::Tensor>& examples,
    const std::shared_ptr<pybind11::object>& compile);

bool is_foreign(const autograd::CutProgram& program);

}  // namespace backplane::python
