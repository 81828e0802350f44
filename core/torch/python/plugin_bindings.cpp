// Which plugins there are, what they and their devices say, and which are left out.
#include "core/torch/python/plugin_bindings.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/runtime/isolate/isolation.h"
#include "core/runtime/plugin/device.h"
#include "core/runtime/plugin/load_policy.h"
#include "core/runtime/plugin/plugin.h"
#include "core/runtime/plugin/registry.h"
#include "core/runtime/watch/quarantine.h"
#include "core/torch/python/devices.h"

namespace py = pybind11;

namespace backplane::python {

namespace {

py::dict device_counters(runtime::Device& device) {
  py::dict out;
  runtime::CopyCounters& counters = device.counters();
  py::dict to_device, from_device;
  std::uint64_t to_total = 0, from_total = 0;
  for (int i = 0; i < runtime::kCopyCauseCount; ++i) {
    const std::string cause(runtime::copy_cause_name(static_cast<runtime::CopyCause>(i)));
    const auto at = static_cast<std::size_t>(i);
    to_device[cause.c_str()] =
        py::make_tuple(counters.to_device_bytes[at].load(), counters.to_device_count[at].load());
    from_device[cause.c_str()] = py::make_tuple(counters.from_device_bytes[at].load(),
                                                counters.from_device_count[at].load());
    to_total += counters.to_device_bytes[at].load();
    from_total += counters.from_device_bytes[at].load();
  }
  out["host_to_device"] = to_device;
  out["device_to_host"] = from_device;
  out["host_to_device_bytes"] = to_total;
  out["device_to_host_bytes"] = from_total;
  out["live_bytes"] = counters.live_bytes.load();
  out["peak_bytes"] = counters.peak_bytes.load();
  // What it cannot say fails no report: a lost device, a child of fork().
  const Result<bp_device_counters> said = device.plugin_counters();
  const bp_device_counters theirs = said.ok() ? *said : bp_device_counters{};
  out["health"] = device.is_distrusted()            ? "distrusted"
                  : !said.ok()                      ? "unknown"
                  : theirs.health == BP_HEALTH_OK   ? "ok"
                  : theirs.health == BP_HEALTH_LOST ? "lost"
                                                    : "degraded";
  out["internal_bytes"] = theirs.internal_bytes;
  out["hidden_copy_bytes"] = theirs.hidden_copy_bytes;
  out["hidden_copy_count"] = theirs.hidden_copy_count;
  return out;
}

py::dict load_policy() {
  const runtime::LoadPolicy policy = unwrap(runtime::read_load_policy());
  py::dict out;
  out["text"] = policy.text();
  out["allowed"] = policy.allowed.size();
  out["denied"] = policy.denied.size();
  out["keys"] = policy.keys.size();
  return out;
}

py::dict note_of(const runtime::PluginEntry& e) {
  py::dict one;
  one["name"] = e.name;
  one["path"] = e.path;
  one["origin"] = e.origin;
  one["error"] = e.error;
  one["loaded"] = e.loaded;
  one["isolated"] = runtime::is_isolation_asked(e.name);
  return one;
}

py::list plugin_entries() {
  std::vector<runtime::PluginEntry> entries;
  {
    const py::gil_scoped_release no_gil;
    entries = runtime::Registry::instance().entries();
  }
  py::list out;
  for (const runtime::PluginEntry& entry : entries) out.append(note_of(entry));
  return out;
}

// What a certificate beside the library says, or why it counts for nothing; empty: there is none.
std::string certificate_text(const runtime::Plugin& plugin) {
  const std::string path = plugin.path() + ".certificate";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  const auto policy = runtime::read_load_policy();
  if (!policy.ok()) return policy.status().message();
  const auto found = runtime::read_certificate(path, plugin.sha256(), *policy, runtime::today());
  if (!found.ok()) return found.status().message();
  return "level " + std::to_string(found->level) + ", signed by " + found->signer + ", until " +
         found->end;
}

py::dict plugin_info(const std::string& name) {
  std::optional<Result<runtime::Plugin*>> found;
  std::vector<runtime::Device*> opened;
  Status failure;
  {
    // A library that loads and a driver that starts may take long.
    const py::gil_scoped_release no_gil;
    found = runtime::Registry::instance().find(name);
    const std::uint32_t count = found->ok() ? (**found)->device_count() : 0;
    for (std::uint32_t i = 0; i < count && failure.ok(); ++i) {
      Result<runtime::Device*> device = (**found)->device(i);
      if (device.ok())
        opened.push_back(*device);
      else
        failure = device.take_status();
    }
  }
  runtime::Plugin* plugin = unwrap(std::move(*found));
  if (!failure.ok()) raise(failure);
  py::dict out;
  out["name"] = plugin->name();
  out["is_of_parent"] = plugin->is_of_parent();
  out["vendor"] = plugin->note().vendor;
  out["version"] = plugin->note().version;
  out["path"] = plugin->path();
  out["sha256"] = plugin->sha256();
  out["certificate"] = certificate_text(*plugin);
  out["isolated"] = plugin->is_isolated();
  out["abi"] = std::to_string(BP_VERSION_MAJOR(plugin->abi_version())) + "." +
               std::to_string(BP_VERSION_MINOR(plugin->abi_version()));
  py::list devices;
  for (runtime::Device* const device : opened) {
    const bp_device_info& info = device->info();
    py::dict one;
    one["label"] = device->label();
    const auto text = [](bp_string t) { return std::string(t.data ? t.data : "", t.size); };
    one["name"] = text(info.name);
    one["architecture"] = text(info.architecture);
    one["is_cpu"] = info.kind == BP_DEVICE_CPU;
    one["torch_device"] = std::string(device->torch_device());  // empty: none
    one["memory_bytes"] = info.memory_bytes;
    py::dict declared;  // bytes per second, nanoseconds; 0: not said
    declared["memory"] = info.memory_bytes_per_s;
    declared["to-device"] = info.to_device_bytes_per_s;
    declared["from-device"] = info.from_device_bytes_per_s;
    declared["launch"] = info.launch_latency_ns;
    one["declared"] = declared;
    one["counters"] = device_counters(*device);
    devices.append(one);
  }
  out["devices"] = devices;
  return out;
}

// Loads it in a worker process. An error where it is loaded otherwise.
void isolate_plugin(const std::string& name) {
  Result<runtime::Plugin*> found = [&] {
    const py::gil_scoped_release no_gil;
    runtime::ask_for_isolation(name);
    return runtime::Registry::instance().find(name);
  }();
  if (!unwrap(std::move(found))->is_isolated())
    raise({Code::kInvalidArgument,
           "Plugin '" + name +
               "' is loaded in this process already; ask for its isolation before its first use, "
               "or set BACKPLANE_ISOLATION=" +
               name + " before the program starts."});
}

py::list quarantined() {
  runtime::read_earlier_crashes();
  py::list out;
  for (const runtime::Crash& crash : runtime::quarantined()) {
    py::dict one;
    one["name"] = crash.name;
    one["sha256"] = crash.sha256;
    one["text"] = crash.text();
    out.append(one);
  }
  return out;
}

}  // namespace

void register_plugins(py::module_& m) {
  m.def("add_plugin_path", [](const std::string& path, const std::string& origin) {
    if (const Status status = runtime::Registry::instance().add_path(path, origin); !status.ok())
      raise(status);
  });
  m.def("plugin_entries", plugin_entries);
  m.def("are_plugins_shut_down", [] { return runtime::Registry::instance().is_shut_down(); });
  m.def("load_policy", load_policy);
  m.def("plugin_info", plugin_info);
  m.def("isolate_plugin", isolate_plugin);
  m.def("device_counters", [](const std::string& name, int index) {
    return device_counters(*find_devices({{name, index}}).front());
  });
  m.def("reset_device_counters", [](const std::string& name, int index) {
    find_devices({{name, index}}).front()->counters().reset();
  });
  m.def("quarantined", quarantined);
  m.def("release_quarantined",
        [](const std::string& name) { return unwrap(runtime::release_quarantined(name)); });
}

}  // namespace backplane::python
