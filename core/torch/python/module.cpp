// The extension module torch_backplane._C: thin bindings, no logic.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/headeronly/version.h>

#include <stdexcept>

#include "core/ir/op_table.h"
#include "core/ir/text.h"
#include "core/runtime/host/host_arena.h"
#include "core/runtime/host/host_services.h"
#include "core/runtime/plugin/device.h"
#include "core/runtime/plugin/pack_cache.h"
#include "core/runtime/plugin/plugin.h"
#include "core/runtime/plugin/registry.h"
#include "core/runtime/plugin/trace.h"
#include "core/torch/bridge/errors.h"
#include "core/torch/bridge/held_signals.h"
#include "core/torch/compiler/compiled_function.h"
#include "core/torch/python/device_bindings.h"
#include "core/torch/python/devices.h"
#include "core/torch/python/frontend_bindings.h"
#include "core/torch/python/memory_bindings.h"
#include "core/torch/python/plugin_bindings.h"
#include "core/torch/python/record_bindings.h"
#include "core/torch/python/recorded_bindings.h"

namespace py = pybind11;

namespace backplane::python {

namespace {

std::uint32_t torch_thread_count() { return static_cast<std::uint32_t>(at::get_num_threads()); }

void torch_parallel_for(std::size_t count, std::size_t grain, void* user,
                        void (*body)(void*, std::size_t, std::size_t)) {
  at::parallel_for(0, static_cast<std::int64_t>(count), static_cast<std::int64_t>(grain),
                   [&](std::int64_t begin, std::int64_t end) {
                     body(user, static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
                   });
}

py::list call_graph(compiler::CompiledFunction& function, const py::list& tensors) {
  std::vector<compiler::Argument> arguments;
  for (const py::handle tensor : tensors)
    arguments.push_back(compiler::Argument::owned(tensor.cast<at::Tensor>()));
  std::optional<Result<std::vector<at::Tensor>>> results;
  {
    const py::gil_scoped_release no_gil;
    results.emplace(function.call(arguments, {}));
  }
  py::list out;
  for (at::Tensor& tensor : unwrap(std::move(*results))) out.append(std::move(tensor));
  return out;
}

// By node: the partition that has it, or none.
std::vector<std::optional<std::size_t>> partition_of_nodes(const runtime::CompiledGraph& graph) {
  std::vector<std::optional<std::size_t>> out(graph.graph().nodes.size());
  for (std::size_t p = 0; p < graph.partitions().size(); ++p)
    for (const ir::NodeId n : graph.partitions()[p]->nodes) out[n] = p;
  return out;
}

// Why no plugin has the node; empty where none was asked.
std::string refusal_of(const runtime::CompiledGraph& graph, ir::NodeId n) {
  const ir::Node& node = graph.graph().nodes[n];
  std::string reason = node.op->known ? node.host_reason : "not in the op table";
  for (const auto& r : graph.refusals())
    if (r.node == n) reason += (reason.empty() ? "" : "; ") + r.device + ": " + r.text;
  return reason;
}

// What plugins were asked to run: each node with its text, the types and bytes (at the hints of
// sizes) of what it reads and makes, and where it runs.
py::list nodes(const compiler::CompiledFunction& function) {
  const runtime::CompiledGraph& compiled = function.graph();
  const ir::Graph& graph = compiled.graph();
  const auto partitions = partition_of_nodes(compiled);
  const auto describe = [&](const std::vector<ir::ValueId>& values) {
    py::list out;
    for (const ir::ValueId v : values)
      if (v == ir::kNone)
        out.append(py::none());
      else
        out.append(py::make_tuple(ir::print_type(graph, graph.values[v].type), graph.hint_bytes(v),
                                  graph.values[v].producer));
    return out;
  };
  py::list out;
  for (ir::NodeId n = 0; n < graph.nodes.size(); ++n) {
    const ir::Node& node = graph.nodes[n];
    py::dict one;
    one["op"] = std::string(node.op->name);
    one["text"] = ir::print_node(graph, n);
    one["operands"] = describe(node.operands);
    one["results"] = describe(node.results);
    one["is_view"] = node.op->op_class == ir::OpClass::kView;
    one["location"] = node.location;
    one["partition"] = partitions[n] ? py::object(py::int_(*partitions[n])) : py::none();
    one["device"] = partitions[n] ? compiled.partitions()[*partitions[n]]->device : std::string();
    one["reason"] = partitions[n] ? std::string() : refusal_of(compiled, n);
    out.append(one);
  }
  return out;
}

py::dict report(const compiler::CompiledFunction& function) {
  const runtime::CompiledGraph& graph = function.graph();
  py::dict out;
  out["name"] = graph.graph().name;
  out["nodes"] = graph.plugin_node_count() + graph.fallback_node_count();
  out["plugin_nodes"] = graph.plugin_node_count();
  out["fallback_nodes"] = graph.fallback_node_count();
  out["compile_ns"] = graph.compile_ns();
  out["calls"] = function.calls();
  out["restrided_inputs"] = function.restrided_inputs();
  py::list partitions;
  for (const auto& p : graph.partitions()) {
    py::dict one;
    one["device"] = p->device;
    one["nodes"] = p->nodes;
    py::list operators;
    for (const ir::NodeId n : p->nodes)
      operators.append(py::make_tuple(std::string(graph.graph().nodes[n].op->name),
                                      graph.graph().nodes[n].location));
    one["operators"] = operators;
    one["predicted_ns"] = p->predicted_ns;
    one["measured_ns"] = p->measured_ns.load();
    one["calls"] = p->calls.load();
    one["from_cache"] = p->from_cache;
    partitions.append(one);
  }
  out["partitions"] = partitions;
  py::list parts;
  for (const auto& part : function.parts()) parts.append(report(*part));
  out["parts"] = parts;
  py::list fallback;
  const auto on_plugin = partition_of_nodes(graph);
  for (ir::NodeId n = 0; n < graph.graph().nodes.size(); ++n) {
    const ir::Node& node = graph.graph().nodes[n];
    if (on_plugin[n] || node.op->op_class == ir::OpClass::kView) continue;
    py::dict one;
    one["node"] = n;
    one["op"] = std::string(node.op->name);
    one["location"] = node.location;
    one["reason"] = refusal_of(graph, n);
    fallback.append(one);
  }
  out["fallback"] = fallback;
  return out;
}

}  // namespace

}  // namespace backplane::python

PYBIND11_MODULE(_C, m) {
  using namespace backplane;          // NOLINT(google-build-using-namespace)
  using namespace backplane::python;  // NOLINT(google-build-using-namespace)
  // An import that is torn cannot be made again: types are registered once.
  const bridge::HeldSignals held;
  runtime::set_thread_hooks({torch_thread_count, torch_parallel_for});
  // With the error of the signal's handler set, which is raised when the call that asks has ended.
  runtime::set_interrupt_check([] {
    const py::gil_scoped_acquire gil;
    return !bridge::run_held_signals();
  });
  bridge::watch_errors_of_plugins();
  runtime::start_trace_from_environment();

  m.attr("StatusError") = py::reinterpret_steal<py::object>(PyErr_NewExceptionWithDoc(
      "torch_backplane._C.StatusError", "A failed call: args are the code's name and the message.",
      PyExc_RuntimeError, nullptr));

  py::class_<compiler::CompiledFunction, std::shared_ptr<compiler::CompiledFunction>>(
      m, "CompiledFunction", py::dynamic_attr())
      // ATen's errors keep their Python types (IndexError, ...).
      .def("__call__", torch::wrap_pybind_function(call_graph), py::arg("tensors"))
      .def("report", report)
      .def("nodes", nodes)
      .def("set_timing", [](compiler::CompiledFunction& f, bool on) { f.graph().set_timing(on); })
      .def("print_graph",
           [](const compiler::CompiledFunction& f) { return ir::print(f.graph().graph()); })
      .def("print_plan",
           [](const compiler::CompiledFunction& f) { return f.graph().print_plan(); });

  register_record(m);
  register_device_bindings(m);
#ifdef BACKPLANE_OWN_FRONT_END
  register_frontend(m);
#endif
  register_recorded(m);
  register_memory(m);
  register_plugins(m);
  // In the main thread, at the end of the process.
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    const py::gil_scoped_release no_gil;
    runtime::Registry::instance().shutdown();
  }));
  m.def("clear_packs", [] {
    runtime::PackCache::instance().clear();
    runtime::HostArena::release_unused();
  });
  // By the address of the storage object, as torch.UntypedStorage._cdata.
  m.def("forget_packs", [](const std::vector<std::uintptr_t>& storages) {
    std::vector<const void*> of;
    for (const std::uintptr_t storage : storages) of.push_back(reinterpret_cast<void*>(storage));
    runtime::PackCache::instance().forget(of);
  });
  m.def("resident_weight_bytes", [] { return runtime::PackCache::instance().resident_bytes(); });
  m.attr("abi_version") = std::to_string(BP_VERSION_MAJOR(BP_ABI_VERSION)) + "." +
                          std::to_string(BP_VERSION_MINOR(BP_ABI_VERSION));
  // The one that the package was built for.
  m.attr("torch_version") = std::to_string(TORCH_VERSION_MAJOR) + "." +
                            std::to_string(TORCH_VERSION_MINOR) + "." +
                            std::to_string(TORCH_VERSION_PATCH);
  m.def("start_trace", runtime::start_trace);
  m.def("stop_trace", runtime::stop_trace);
  m.def("clear_trace", runtime::clear_trace);
  m.def("write_trace", runtime::write_trace, py::arg("path"));
  m.def("trace_totals", [] {
    py::list out;
    for (const runtime::TraceTotal& t : runtime::trace_totals())
      out.append(py::make_tuple(t.name, t.count, t.total_ns));
    return out;
  });
  m.def("op_table", [] {
    py::list out;
    for (const ir::OpInfo& op : ir::all_ops()) {
      py::dict row;
      row["name"] = op.name;
      row["operands"] = op.operands;
      row["version"] = op.version;
      row["class"] = ir::op_class_name(op.op_class);
      row["shape"] = ir::shape_rule_name(op.shape_rule);
      row["flops"] = op.flops_per_element;
      row["is_gradient"] = op.is_gradient;
      row["data_dependent_shape"] = op.data_dependent_shape;
      row["has_effects"] = ir::has_effects(op);
      out.append(row);
    }
    return out;
  });
}
