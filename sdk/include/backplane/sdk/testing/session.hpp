// One device of a plugin as a host uses it: memory, claims, compile, execute. Needs no test
// framework: what should succeed and does not throws a Failure with the plugin's own text.
#pragma once

#include <backplane/plugin.h>
#include <backplane/sdk/testing/graph_builder.hpp>
#include <backplane/sdk/testing/host.hpp>
#include <backplane/sdk/testing/host_tensor.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace backplane::sdk::testing {

// What a call answered. The error object is released.
struct Outcome {
  bp_code code = BP_OK;
  std::string message;

  static Outcome take(bp_error* error) {
    if (error == nullptr) return {};
    Outcome out{host_error(error)->code, host_error(error)->message};
    host_api().error_release(nullptr, error);
    return out;
  }
  bool ok() const { return code == BP_OK; }
};

class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& text, bp_code code = BP_INTERNAL)
      : std::runtime_error(text), code_(code) {}
  bp_code code() const { return code_; }

 private:
  bp_code code_;
};

// The hardware or its driver is not there: nothing can be tested.
class NoDevice : public Failure {
 public:
  explicit NoDevice(const std::string& text) : Failure(text, BP_UNSUPPORTED) {}
};

inline void require_ok(bp_error* error) {
  const Outcome outcome = Outcome::take(error);
  if (!outcome.ok())
    throw Failure(
        "the plugin answers code " + std::to_string(outcome.code) + ": " + outcome.message,
        outcome.code);
}

using Negotiate = void (*)(bp_negotiation*);

class Session {
 public:
  // Device `index` of the plugin behind `negotiate`; by default of the one that is linked in.
  explicit Session(Negotiate negotiate = &backplane_plugin_negotiate, std::uint32_t index = 0) {
    negotiation_.magic = BP_NEGOTIATE_MAGIC;
    negotiation_.host_min = negotiation_.host_max = BP_ABI_VERSION;
    negotiation_.host = &host_api();
    negotiate(&negotiation_);
    if (negotiation_.result != BP_NEGOTIATE_OK)
      throw Failure("the plugin does not negotiate: " + std::string(negotiation_.message));
    try {
      if (const std::uint32_t count = api().device_count(plugin()); index >= count)
        throw NoDevice("the plugin has " + std::to_string(count) + " devices; there is no device " +
                       std::to_string(index));
      info_ = make<bp_device_info>();
      require_ok(api().device_describe(plugin(), index, &info_));
      require_ok(api().device_open(plugin(), index, &device_));
    } catch (...) {
      api().shutdown(plugin());
      throw;
    }
  }
  ~Session() {
    for (bp_executable* e : executables_) api().executable_release(e);
    for (bp_event* e : events_) api().event_release(e);
    for (bp_stream* s : streams_) api().stream_release(s);
    for (bp_buffer* b : buffers_) api().buffer_release(b);
    api().device_close(device_);
    api().shutdown(plugin());
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const bp_plugin_api& api() const { return *negotiation_.api; }
  bp_plugin* plugin() const { return negotiation_.plugin; }
  bp_device* device() const { return device_; }
  const bp_device_info& info() const { return info_; }

  // ---- Objects: released with the session, after all work ----

  bp_buffer* buffer(std::uint64_t bytes) {
    bp_buffer* out = nullptr;
    require_ok(api().buffer_create(device_, bytes, &out));
    return buffers_.emplace_back(out);
  }
  void release(bp_buffer* buffer) {
    std::erase(buffers_, buffer);
    api().buffer_release(buffer);
  }
  bool has_streams() const {
    if (api().stream_create == nullptr) return false;
    bp_stream* probe = nullptr;
    const Outcome outcome = Outcome::take(api().stream_create(device_, &probe));
    if (outcome.ok()) api().stream_release(probe);
    if (!outcome.ok() && outcome.code != BP_UNSUPPORTED)
      throw Failure("no stream: " + outcome.message, outcome.code);
    return outcome.ok();
  }
  bp_stream* stream() {
    bp_stream* out = nullptr;
    require_ok(api().stream_create(device_, &out));
    return streams_.emplace_back(out);
  }
  bp_event* event() {
    bp_event* out = nullptr;
    require_ok(api().event_create(device_, &out));
    return events_.emplace_back(out);
  }
  bool is_done(bp_event* event) const {
    std::int32_t done = 0;
    require_ok(api().event_query(event, &done));
    return done == 1;
  }
  void wait(bp_event* event) const { require_ok(api().event_wait(event, UINT64_MAX)); }

  // ---- Copies ----

  static bp_range range(bp_buffer* buffer, std::uint64_t bytes) {
    return bytes == 0 ? bp_range{} : bp_range{buffer, nullptr, 0, bytes};
  }
  static bp_range host_range(void* memory, std::uint64_t bytes) {
    return {nullptr, memory, 0, bytes};
  }
  bp_error* copy(bp_range source, bp_range target, bp_order order = {}) const {
    auto args = make<bp_copy_args>();
    args.source = source;
    args.target = target;
    args.order = order;
    return api().copy(device_, &args);
  }
  template <class T>
  bp_buffer* upload(std::vector<T> values) {
    const std::uint64_t bytes = values.size() * sizeof(T);
    bp_buffer* to = buffer(bytes);
    require_ok(copy(host_range(values.data(), bytes), range(to, bytes)));
    return to;
  }
  template <class T>
  std::vector<T> download(bp_buffer* from, std::size_t count, std::uint64_t offset = 0) const {
    std::vector<T> out(count);
    const std::uint64_t bytes = count * sizeof(T);
    require_ok(copy({from, nullptr, offset, bytes}, host_range(out.data(), bytes)));
    return out;
  }

  // ---- Claims, compile, execute ----

  ClaimAnswer claims(const bp_graph& graph) const {
    ClaimAnswer out;
    require_ok(api().claims(plugin(), &info_, &graph, reinterpret_cast<bp_claim_sink*>(&out)));
    return out;
  }
  bp_executable* compile(const bp_graph& graph, bp_layout_kind inputs = BP_LAYOUT_STRIDED) {
    std::vector<bp_io_request> requests(graph.input_count + graph.output_count);
    for (auto& r : requests) r.layout.kind = BP_LAYOUT_STRIDED;
    for (std::size_t i = 0; i < graph.input_count; ++i) requests[i].layout.kind = inputs;
    auto args = make<bp_compile_args>();
    args.device = device_;
    args.info = &info_;
    args.graph = &graph;
    args.inputs = requests.data();
    args.outputs = requests.data() + graph.input_count;
    args.io_stride = sizeof(bp_io_request);
    bp_executable* out = nullptr;
    require_ok(api().compile(plugin(), &args, &out));
    return own(out);
  }
  std::string save(bp_executable* executable) const {
    std::string blob;
    require_ok(api().executable_save(executable, reinterpret_cast<bp_byte_sink*>(&blob)));
    return blob;
  }
  bp_executable* load(const std::string& blob) {
    bp_executable* out = nullptr;
    require_ok(api().executable_load(device_, blob.data(), blob.size(), &out));
    return own(out);
  }
  bp_executable_info describe(bp_executable* executable) const {
    auto out = make<bp_executable_info>();
    require_ok(api().executable_describe(executable, &out));
    return out;
  }
  // The workspace lives as long as the session, since the work may be queued.
  bp_error* execute(bp_executable* executable, const std::vector<bp_range>& inputs,
                    const std::vector<bp_range>& outputs, bp_order order = {},
                    const Shape& dims = {}) {
    std::vector<bp_binding> bindings(inputs.size() + outputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) bindings[i].range = inputs[i];
    for (std::size_t i = 0; i < outputs.size(); ++i) bindings[inputs.size() + i].range = outputs[i];
    std::uint64_t workspace = describe(executable).workspace_bytes;
    if (!dims.empty() && api().executable_workspace != nullptr)
      require_ok(api().executable_workspace(executable, dims.data(), &workspace));
    auto args = make<bp_execute_args>();
    args.inputs = bindings.data();
    args.outputs = bindings.data() + inputs.size();
    args.binding_stride = sizeof(bp_binding);
    if (workspace != 0) args.workspace = range(buffer(workspace), workspace);
    args.dims = dims.empty() ? nullptr : dims.data();
    args.order = order;
    return api().execute(executable, &args);
  }

  // ---- All of it ----

  struct RunOptions {
    Shape dims{};           // a value per dim class of the graph
    bool streamed = false;  // copies and work on one stream of the device, waited for at the end
  };
  // The outputs of a graph whose nodes are all claimed. Fails where an element of an output is not
  // written, or memory behind one is.
  std::vector<HostTensor> run(const bp_graph& graph, const std::vector<HostTensor>& inputs) {
    return run(graph, inputs, RunOptions{});
  }
  std::vector<HostTensor> run(const bp_graph& graph, const std::vector<HostTensor>& inputs,
                              const RunOptions& options) {
    require_claimed(graph);
    if (inputs.size() != graph.input_count)
      throw Failure("the graph has " + std::to_string(graph.input_count) + " inputs, given are " +
                    std::to_string(inputs.size()));
    bp_executable* executable = compile(graph);
    // What both runs leave as it was before is written by neither.
    constexpr std::byte kFirst{0xa5}, kSecond{0x5a};
    const auto before = run_filled(executable, graph, inputs, options, kFirst);
    auto results = run_filled(executable, graph, inputs, options, kSecond);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::byte *first = before[i].data(), *second = results[i].data();
      const std::string name = "output " + std::to_string(i);
      const auto size = static_cast<std::size_t>(element_bytes(results[i].spec().dtype));
      results[i].for_each_offset([&](std::size_t at) {
        for (std::size_t b = at; b < at + size; ++b)
          if (first[b] == kFirst && second[b] == kSecond)
            throw Failure(name + " is not written at byte " + std::to_string(b));
      });
      const std::byte* guard = second + results[i].bytes();
      if (std::any_of(guard, guard + HostTensor::kGuardBytes,
                      [](std::byte b) { return b != kSecond; }))
        throw Failure("memory behind " + name + " is written");
    }
    return results;
  }

 private:
  bp_executable* own(bp_executable* executable) { return executables_.emplace_back(executable); }

  void require_claimed(const bp_graph& graph) const {
    const ClaimAnswer answer = claims(graph);
    std::string refused;
    for (const std::string& text : answer.refused) refused += "\n  " + text;
    const GraphView view(graph);
    for (std::size_t i = 0; i < view.size(); ++i)
      if (std::find(answer.claimed.begin(), answer.claimed.end(), view[i].id()) ==
          answer.claimed.end())
        throw Failure("the plugin does not claim " + std::string(view[i].op()) + refused,
                      BP_UNSUPPORTED);
  }
  std::vector<HostTensor> run_filled(bp_executable* executable, const bp_graph& graph,
                                     std::vector<HostTensor> inputs, const RunOptions& options,
                                     std::byte fill) {
    const GraphView view(graph);
    const Dims dims(options.dims);
    std::vector<HostTensor> results;
    for (const std::uint32_t index : view.outputs()) {
      const ValueView value = view.value(index);
      results.emplace_back(TensorSpec{value.dtype(), dims(value.dims()), dims(value.strides())},
                           fill);
    }
    bp_order order{};
    if (options.streamed) order.stream = stream();
    std::vector<bp_range> in, out;
    for (HostTensor& tensor : inputs) in.push_back(place(tensor, 0, order));
    std::vector<bp_buffer*> targets;
    for (HostTensor& tensor : results) {
      out.push_back(place(tensor, HostTensor::kGuardBytes, order));
      targets.push_back(out.back().buffer);
      out.back() = range(targets.back(), tensor.bytes());
    }
    require_ok(execute(executable, in, out, order, options.dims));
    for (std::size_t i = 0; i < results.size(); ++i) {
      bp_order last = order;
      if (options.streamed) last.signal = event();
      const std::uint64_t bytes = results[i].bytes() + HostTensor::kGuardBytes;
      require_ok(copy(range(targets[i], bytes), host_range(results[i].data(), bytes), last));
      if (last.signal != nullptr) wait(last.signal);
    }
    return results;
  }
  // A tensor's memory, and `more` bytes behind it, on the device.
  bp_range place(HostTensor& tensor, std::uint64_t more, bp_order order) {
    const std::uint64_t bytes = tensor.bytes() + more;
    if (bytes == 0) return {};
    bp_buffer* to = buffer(bytes);
    // Host memory stays as it is until the event: the tensor lives until results are waited for,
    // which come later on the same stream.
    if (order.stream != nullptr) order.signal = event();
    require_ok(copy(host_range(tensor.data(), bytes), range(to, bytes), order));
    return range(to, bytes);
  }

  bp_negotiation negotiation_{};
  bp_device_info info_{};
  bp_device* device_ = nullptr;
  std::vector<bp_buffer*> buffers_;
  std::vector<bp_stream*> streams_;
  std::vector<bp_event*> events_;
  std::vector<bp_executable*> executables_;
};

// What the linked plugin makes of a graph with one output, of inputs as they lie in memory.
template <class Out, class In>
std::vector<Out> run_graph(const GraphBuilder& builder,
                           const std::vector<std::vector<In>>& inputs) {
  const bp_graph graph = builder.graph();
  const GraphView view(graph);
  std::vector<HostTensor> tensors;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ValueView value = view.value(view.inputs()[i]);
    const Dims none({});
    tensors.emplace_back(value.dtype(), none(value.dims()), none(value.strides()));
    tensors.back().set_memory(inputs[i]);
  }
  Session session;
  return session.run(graph, tensors).at(0).template memory<Out>();
}

}  // namespace backplane::sdk::testing
