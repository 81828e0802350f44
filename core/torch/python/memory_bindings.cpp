#include "core/torch/python/memory_bindings.h"

#include "core/torch/bridge/memory_meter.h"

namespace py = pybind11;

namespace backplane::python {

namespace {

py::list measure(const py::args& functions) {
  std::vector<std::function<void()>> calls;
  for (const py::handle function : functions) calls.emplace_back([function] { function(); });
  py::list out;
  for (const std::vector<bridge::MemoryChange>& changes : bridge::measure_memory(calls)) {
    py::list part;
    for (const bridge::MemoryChange& change : changes)
      part.append(py::make_tuple(change.at_ns, change.bytes, change.use));
    out.append(part);
  }
  return out;
}

}  // namespace

void register_memory(py::module_& module) {
  bridge::report_calls();
  module.def("measure_memory", measure,
             "Calls each function; per function the changes of memory meanwhile: (nanoseconds, "
             "bytes, use).");
}

}  // namespace backplane::python
