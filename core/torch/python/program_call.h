// Python callables as programs of tensors and numbers.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/torch/record/session.h"

namespace backplane::python {

// Released under the GIL, whoever is last.
std::shared_ptr<pybind11::object> hold_object(pybind11::object object);

pybind11::object tensor_or_none(const at::Tensor& tensor);
std::string type_name(const pybind11::handle& object);

// A tensor, number or None. Fails for other types, and for tensor subclasses, whose own code a
// recording would not see; fake tensors are looked at only.
Status to_argument(const pybind11::handle& item, std::size_t position, c10::IValue& out_value);

// Calls with the GIL taken. Tensors and numbers of the nest that it returns, in order. An exception
// that is no fault of the program (KeyboardInterrupt) is kept for rethrow_interrupt().
std::vector<c10::IValue> call_python(const pybind11::object& callable,
                                     std::span<const c10::IValue> arguments);
// Throws what call_python kept on this thread, once.
void rethrow_interrupt();

// An FX graph module whose own tensors are arguments behind the others.
struct ModuleProgram {
  pybind11::object callable;
  std::vector<std::string> captured_names;
  std::vector<at::Tensor> captured;
  record::Locate locate;  // takes the GIL
};
// `own_count`: arguments of the module itself. Fails on what a recording would not see into.
Result<ModuleProgram> module_program(const pybind11::object& module, std::size_t own_count);

}  // namespace backplane::python
