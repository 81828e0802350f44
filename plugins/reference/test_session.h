// For tests: the plugin as a host sees it, and one graph run through it.
#pragma once

#include <backplane/plugin.h>
#include <gtest/gtest.h>
#include <backplane/sdk/testing.hpp>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace backplane::reference::testing {

using namespace sdk::testing;

class Session {
 public:
  Session() {
    negotiation_.magic = BP_NEGOTIATE_MAGIC;
    negotiation_.host_min = negotiation_.host_max = BP_ABI_VERSION;
    negotiation_.host = &fake_host_api();
    backplane_plugin_negotiate(&negotiation_);
    EXPECT_EQ(negotiation_.result, std::uint32_t{BP_NEGOTIATE_OK}) << negotiation_.message;
    expect_ok(api().device_open(negotiation_.plugin, 0, &device));
    info.struct_size = sizeof info;
    expect_ok(api().device_describe(negotiation_.plugin, 0, &info));
  }
  ~Session() {
    for (bp_buffer* b : buffers_) api().buffer_release(b);
    api().device_close(device);
    api().shutdown(negotiation_.plugin);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const bp_plugin_api& api() const { return *negotiation_.api; }
  bp_plugin* plugin() const { return negotiation_.plugin; }

  static void expect_ok(bp_error* error) {
    EXPECT_EQ(error, nullptr) << fake(error)->message;
    if (error) fake_host_api().error_release(nullptr, error);
  }
  static bp_code code_of(bp_error* error) {
    const bp_code code = error ? fake(error)->code : bp_code{BP_OK};
    if (error) fake_host_api().error_release(nullptr, error);
    return code;
  }

  bp_buffer* buffer(std::uint64_t bytes) {
    bp_buffer* out = nullptr;
    expect_ok(api().buffer_create(device, bytes, &out));
    buffers_.push_back(out);
    return out;
  }
  void release(bp_buffer* buffer) {
    std::erase(buffers_, buffer);
    api().buffer_release(buffer);
  }
  static bp_range range(bp_buffer* buffer, std::uint64_t bytes) {
    return {buffer, nullptr, 0, bytes};
  }
  bp_error* copy(bp_range source, bp_range target, bp_order order = {}) {
    bp_copy_args args{};
    args.struct_size = sizeof args;
    args.source = source;
    args.target = target;
    args.order = order;
    return api().copy(device, &args);
  }
  template <class T>
  bp_buffer* upload(std::vector<T> values) {
    const std::uint64_t bytes = values.size() * sizeof(T);
    bp_buffer* to = buffer(bytes);
    expect_ok(copy({nullptr, values.data(), 0, bytes}, range(to, bytes)));
    return to;
  }
  template <class T>
  std::vector<T> download(bp_buffer* from, std::size_t count, std::uint64_t offset = 0) {
    std::vector<T> out(count);
    const std::uint64_t bytes = count * sizeof(T);
    expect_ok(copy({from, nullptr, offset, bytes}, {nullptr, out.data(), 0, bytes}));
    return out;
  }

  bp_executable* compile(const bp_graph& graph, bp_layout_kind inputs = BP_LAYOUT_STRIDED) {
    std::vector<bp_io_request> requests(graph.input_count + graph.output_count);
    for (auto& r : requests) r.layout.kind = BP_LAYOUT_STRIDED;
    for (std::size_t i = 0; i < graph.input_count; ++i) requests[i].layout.kind = inputs;
    bp_compile_args args{};
    args.struct_size = sizeof args;
    args.device = device;
    args.info = &info;
    args.graph = &graph;
    args.inputs = requests.data();
    args.outputs = requests.data() + graph.input_count;
    args.io_stride = sizeof(bp_io_request);
    bp_executable* out = nullptr;
    expect_ok(api().compile(plugin(), &args, &out));
    return out;
  }
  bp_executable_info describe(bp_executable* executable) {
    bp_executable_info out{};
    out.struct_size = sizeof out;
    expect_ok(api().executable_describe(executable, &out));
    return out;
  }
  // The workspace lives as long as the session, since the work may be queued.
  bp_error* execute(bp_executable* executable, std::vector<bp_range> inputs,
                    std::vector<bp_range> outputs, bp_order order = {},
                    std::vector<std::int64_t> dims = {}) {
    std::vector<bp_binding> bindings(inputs.size() + outputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) bindings[i].range = inputs[i];
    for (std::size_t i = 0; i < outputs.size(); ++i) bindings[inputs.size() + i].range = outputs[i];
    std::uint64_t workspace = describe(executable).workspace_bytes;
    if (!dims.empty()) expect_ok(api().executable_workspace(executable, dims.data(), &workspace));
    bp_execute_args args{};
    args.struct_size = sizeof args;
    args.inputs = bindings.data();
    args.outputs = bindings.data() + inputs.size();
    args.binding_stride = sizeof(bp_binding);
    if (workspace) args.workspace = range(buffer(workspace), workspace);
    args.dims = dims.data();
    args.order = order;
    return api().execute(executable, &args);
  }
  FakeClaims claims(const bp_graph& graph) {
    FakeClaims out;
    expect_ok(api().claims(plugin(), &info, &graph, reinterpret_cast<bp_claim_sink*>(&out)));
    return out;
  }

  bp_device* device = nullptr;
  bp_device_info info{};

 private:
  bp_negotiation negotiation_{};
  std::vector<bp_buffer*> buffers_;  // released with the session, after all work
};

inline constexpr bp_dtype kF32{BP_DTYPE_FLOAT, 32, 1}, kI64{BP_DTYPE_INT, 64, 1},
    kBool{BP_DTYPE_BOOL, 8, 1}, kBF16{BP_DTYPE_BFLOAT, 16, 1};

// Inputs of one type, one output of another: uploads, runs, downloads.
template <class Out, class In>
std::vector<Out> run_graph(const GraphBuilder& builder, const std::vector<std::vector<In>>& inputs,
                           std::size_t out_count) {
  Session session;
  const bp_graph graph = builder.graph();
  EXPECT_TRUE(session.claims(graph).refused.empty());
  bp_executable* executable = session.compile(graph);
  std::vector<bp_range> in;
  for (const auto& values : inputs)
    in.push_back(Session::range(session.upload(values), values.size() * sizeof(In)));
  bp_buffer* out = session.buffer(out_count * sizeof(Out));
  Session::expect_ok(
      session.execute(executable, in, {Session::range(out, out_count * sizeof(Out))}));
  auto result = session.download<Out>(out, out_count);
  session.api().executable_release(executable);
  return result;
}

}  // namespace backplane::reference::testing
