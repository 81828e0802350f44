#include "core/torch/bridge/spared_hooks.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace py = pybind11;

namespace backplane::bridge {

void spare_hooks(const at::Tensor& leaf) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(leaf);
  if (!meta || (meta->hooks_.empty() && !meta->post_acc_grad_hooks_)) return;
  const py::gil_scoped_acquire gil;
  const auto tensor = py::reinterpret_steal<py::object>(THPVariable_Wrap(leaf));
  // Where Python's collector of loops sees them.
  py::module_::import("torch_backplane.spared_hooks").attr("spare")(tensor);
}

}  // namespace backplane::bridge
