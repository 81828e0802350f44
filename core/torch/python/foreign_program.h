// A captured graph without gradients, compiled by a TorchDynamo back end: a Python function.
#pragma once

#include <pybind11/pybind11.h>

#include "core/torch/compiler/program_store.h"

namespace backplane::python {

// `compile(name, run, examples)` gives a callable of tensors; `run` runs the graph with a list of
// them. Takes the GIL. Empty for None.
compiler::ProgramStore::Foreign foreign_compiler(const pybind11::object& compile);

// For `compile`: calls the back end itself. It may take long, so that handlers of signals run
// meanwhile; PyTorch's tracing, which no exception may tear, is not in it.
pybind11::object call_back_end(const pybind11::object& function, const pybind11::object& module,
                               const pybind11::object& examples);

bool is_foreign(const autograd::CutProgram& program);

}  // namespace backplane::python
