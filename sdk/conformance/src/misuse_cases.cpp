// Calls that break a rule of the headers, and graphs of a future host: refused, never obeyed.
#include <algorithm>
#include <array>
#include <cstring>

#include "sdk/conformance/src/raw.h"

namespace backplane::conformance {
namespace {

using CaseOutcome = conformance::Outcome;
using testing::Session;

// The call fails with one of these codes.
CaseOutcome expect_code(bp_error* error, std::initializer_list<bp_code> codes) {
  const testing::Outcome outcome = testing::Outcome::take(error);
  if (std::ranges::find(codes, outcome.code) != codes.end()) {
    if (outcome.message.empty()) return CaseOutcome::fail("the error has no message");
    return {};
  }
  return CaseOutcome::fail(outcome.ok()
                               ? "the call succeeds"
                               : "the call fails with code " + std::to_string(outcome.code) + ": " +
                                     outcome.message);
}

struct Misuse {
  const char* name;
  CaseOutcome (*run)(Kit& kit);
};

bp_copy_args copy_args(bp_range source, bp_range target) {
  auto args = sdk::make<bp_copy_args>();
  args.source = source;
  args.target = target;
  return args;
}

const Misuse kMisuses[] = {
    {"describe-a-device-that-is-not-there",
     [](Kit& kit) {
       Session& s = session(kit);
       auto info = sdk::make<bp_device_info>();
       return expect_code(s.api().device_describe(s.plugin(), 1000, &info), {BP_INVALID_ARGUMENT});
     }},
    {"describe-the-last-index",
     [](Kit& kit) {
       Session& s = session(kit);
       auto info = sdk::make<bp_device_info>();
       return expect_code(s.api().device_describe(s.plugin(), UINT32_MAX, &info),
                          {BP_INVALID_ARGUMENT});
     }},
    {"open-a-device-that-is-not-there",
     [](Kit& kit) {
       Session& s = session(kit);
       bp_device* device = nullptr;
       return expect_code(s.api().device_open(s.plugin(), 1000, &device), {BP_INVALID_ARGUMENT});
     }},
    {"buffer-larger-than-memory",
     [](Kit& kit) {
       Session& s = session(kit);
       bp_buffer* buffer = nullptr;
       return expect_code(s.api().buffer_create(s.device(), UINT64_MAX, &buffer),
                          {BP_OUT_OF_MEMORY, BP_INVALID_ARGUMENT});
     }},
    {"buffer-of-half-the-addresses",
     [](Kit& kit) {
       Session& s = session(kit);
       bp_buffer* buffer = nullptr;
       return expect_code(s.api().buffer_create(s.device(), UINT64_C(1) << 62, &buffer),
                          {BP_OUT_OF_MEMORY, BP_INVALID_ARGUMENT});
     }},
    {"after-a-failed-buffer-all-is-well",
     [](Kit& kit) {
       Session& s = session(kit);
       bp_buffer* buffer = nullptr;
       testing::Outcome::take(s.api().buffer_create(s.device(), UINT64_MAX, &buffer));
       const auto back = s.download<float>(s.upload<float>({1, 2, 3}), 3);
       return CaseOutcome::of(back == std::vector<float>{1, 2, 3} ? ""
                                                                  : "a copy gives other numbers");
     }},
    {"release-null-buffer",
     [](Kit& kit) {
       session(kit).api().buffer_release(nullptr);
       return CaseOutcome{};
     }},
    {"release-null-executable",
     [](Kit& kit) {
       session(kit).api().executable_release(nullptr);
       return CaseOutcome{};
     }},
    {"release-null-stream",
     [](Kit& kit) {
       Session& s = session(kit);
       if (s.api().stream_release == nullptr) return CaseOutcome::unsupported("no streams");
       s.api().stream_release(nullptr);
       return CaseOutcome{};
     }},
    {"release-null-event",
     [](Kit& kit) {
       Session& s = session(kit);
       if (s.api().event_release == nullptr) return CaseOutcome::unsupported("no events");
       s.api().event_release(nullptr);
       return CaseOutcome{};
     }},
    {"copy-of-unequal-sizes",
     [](Kit& kit) {
       Session& s = session(kit);
       std::array<std::uint8_t, 64> bytes{};
       const auto args =
           copy_args(Session::host_range(bytes.data(), 32), Session::range(s.buffer(64), 64));
       return expect_code(s.api().copy(s.device(), &args), {BP_INVALID_ARGUMENT});
     }},
    {"copy-past-the-end",
     [](Kit& kit) {
       Session& s = session(kit);
       std::array<std::uint8_t, 4096> bytes{};
       const auto args =
           copy_args(Session::host_range(bytes.data(), 4096), Session::range(s.buffer(64), 4096));
       return expect_code(s.api().copy(s.device(), &args), {BP_INVALID_ARGUMENT});
     }},
    {"copy-from-past-the-end",
     [](Kit& kit) {
       Session& s = session(kit);
       std::array<std::uint8_t, 4096> bytes{};
       const auto args =
           copy_args(Session::range(s.buffer(64), 4096), Session::host_range(bytes.data(), 4096));
       return expect_code(s.api().copy(s.device(), &args), {BP_INVALID_ARGUMENT});
     }},
    {"copy-at-an-offset-that-overflows",
     [](Kit& kit) {
       Session& s = session(kit);
       std::array<std::uint8_t, 64> bytes{};
       const bp_range target{s.buffer(64), nullptr, UINT64_MAX - 63, 64};
       const auto args = copy_args(Session::host_range(bytes.data(), 64), target);
       return expect_code(s.api().copy(s.device(), &args), {BP_INVALID_ARGUMENT});
     }},
    {"copy-between-two-hosts",
     [](Kit& kit) {
       Session& s = session(kit);
       std::array<std::uint8_t, 64> a{}, b{};
       const auto args =
           copy_args(Session::host_range(a.data(), 64), Session::host_range(b.data(), 64));
       const testing::Outcome outcome = testing::Outcome::take(s.api().copy(s.device(), &args));
       // A device that binds host memory may know how.
       return CaseOutcome::of(outcome.ok() || outcome.code == BP_INVALID_ARGUMENT ||
                                      outcome.code == BP_UNSUPPORTED
                                  ? ""
                                  : "code " + std::to_string(outcome.code));
     }},
    {"copy-of-nothing",
     [](Kit& kit) {
       Session& s = session(kit);
       const auto args = copy_args({}, {});
       return CaseOutcome::of(testing::Outcome::take(s.api().copy(s.device(), &args)).ok()
                                  ? ""
                                  : "a copy of no bytes fails");
     }},
    {"wait-for-a-new-event",
     [](Kit& kit) {
       Session& s = session(kit);
       if (!s.has_streams()) return CaseOutcome::unsupported("no streams");
       s.wait(s.event());
       return CaseOutcome::of(s.is_done(s.event()) ? "" : "a new event is not complete");
     }},
    {"load-an-empty-blob",
     [](Kit& kit) {
       Session& s = session(kit);
       if (s.api().executable_load == nullptr) return CaseOutcome::unsupported("no blobs");
       bp_executable* executable = nullptr;
       return expect_code(s.api().executable_load(s.device(), "", 0, &executable),
                          {BP_DATA_CORRUPT, BP_INVALID_ARGUMENT});
     }},
    {"load-a-blob-of-noise",
     [](Kit& kit) {
       Session& s = session(kit);
       if (s.api().executable_load == nullptr) return CaseOutcome::unsupported("no blobs");
       std::string noise(4096, 'x');
       for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<char>(i * 2654435761U);
       bp_executable* executable = nullptr;
       return expect_code(
           s.api().executable_load(s.device(), noise.data(), noise.size(), &executable),
           {BP_DATA_CORRUPT, BP_INVALID_ARGUMENT});
     }},
    {"requirement-of-another",
     [](Kit& kit) {
       Session& s = session(kit);
       if (s.api().blob_check == nullptr) return CaseOutcome::unsupported("no blobs");
       std::uint32_t answer = 0;
       const char text[] = "somebody else's";
       testing::require_ok(
           s.api().blob_check(s.plugin(), &s.info(), {text, sizeof text - 1}, &answer));
       return CaseOutcome::of(answer != BP_BLOB_COMPATIBLE ? ""
                                                           : "it calls a stranger's blob its own");
     }},
    {"layout-of-another",
     [](Kit& kit) {
       Session& s = session(kit);
       if (s.api().layout_bytes == nullptr) return CaseOutcome::unsupported("no layouts");
       const std::int64_t dims[] = {4, 4};
       auto desc = sdk::make<bp_tensor_desc>();
       desc.dtype = sdk::kFloat32;
       desc.rank = 2;
       desc.dims = dims;
       desc.layout = {BP_LAYOUT_OPAQUE, 0, UINT64_C(0xdeadbeefdeadbeef)};
       std::uint64_t bytes = 0;
       return expect_code(s.api().layout_bytes(s.plugin(), &s.info(), &desc, &bytes),
                          {BP_INVALID_ARGUMENT, BP_UNSUPPORTED, BP_DATA_CORRUPT});
     }},
};

// ---- Executions -------------------------------------------------------------------------------

using BindingFault = void (*)(Bound& bindings);
const struct {
  const char* name;
  BindingFault break_it;
} kBindingFaults[] = {
    {"no-output", [](Bound& b) { b.outputs[0] = {}; }},
    {"no-input", [](Bound& b) { b.inputs[0] = {}; }},
    {"short-output", [](Bound& b) { b.outputs[0].size_bytes /= 2; }},
    {"short-input", [](Bound& b) { b.inputs[0].size_bytes /= 2; }},
    {"output-past-its-buffer", [](Bound& b) { b.outputs[0].offset_bytes = UINT64_C(1) << 20; }},
    {"input-past-its-buffer", [](Bound& b) { b.inputs[0].offset_bytes = UINT64_C(1) << 20; }},
};

CaseOutcome execute_broken(RawProblem& problem, Session& s, BindingFault break_it) {
  bp_executable* const executable = s.compile(problem.arrays->get());
  Bound bound = bind(s, problem);
  break_it(bound);
  return expect_code(s.execute(executable, bound.inputs, bound.outputs), {BP_INVALID_ARGUMENT});
}

// ---- Graphs of a future host ------------------------------------------------------------------

// The arrays that a fault may change.
struct OwnArrays {
  explicit OwnArrays(const bp_graph& from)
      : graph(from),
        nodes(from.nodes, from.nodes + from.node_count),
        values(from.values, from.values + from.value_count),
        attributes(from.attributes, from.attributes + from.attribute_count),
        ops(from.ops, from.ops + from.op_count) {
    graph.nodes = nodes.data();
    graph.values = values.data();
    graph.attributes = attributes.data();
    graph.ops = ops.data();
  }
  bp_graph graph;
  std::vector<bp_node> nodes;
  std::vector<bp_value> values;
  std::vector<bp_attribute> attributes;
  std::vector<bp_op> ops;
};

using GraphFault = bool (*)(OwnArrays& arrays);  // false: nothing of the kind is there
const struct {
  const char* name;
  GraphFault break_it;
  bool in_attributes = false;  // nodes without any are not concerned
} kGraphFaults[] = {
    {"unknown-operator",
     [](OwnArrays& a) {
       static const char name[] = "aten.of_tomorrow";
       for (bp_op& op : a.ops) op.name = {name, sizeof name - 1};
       return !a.ops.empty();
     }},
    {"operator-of-another-version",
     [](OwnArrays& a) {
       for (bp_op& op : a.ops) op.version = 99;
       return !a.ops.empty();
     }},
    {"unknown-element-type",
     [](OwnArrays& a) {
       for (bp_value& value : a.values) value.dtype.code = 77;
       return true;
     }},
    {"odd-element-bits",
     [](OwnArrays& a) {
       for (bp_value& value : a.values) value.dtype.bits = 24;
       return true;
     }},
    {"element-lanes",
     [](OwnArrays& a) {
       for (bp_value& value : a.values) value.dtype.lanes = 4;
       return true;
     }},
    {"unknown-layout",
     [](OwnArrays& a) {
       for (bp_value& value : a.values) value.layout.kind = 250;
       return true;
     }},
    {"unknown-effects",
     [](OwnArrays& a) {
       for (bp_node& node : a.nodes) node.effects = UINT64_C(1) << 40;
       return true;
     }},
    {"unknown-attribute-kind",
     [](OwnArrays& a) {
       for (bp_attribute& attribute : a.attributes) attribute.kind = 200;
       return !a.attributes.empty();
     },
     true},
    {"must-understand-flag",
     [](OwnArrays& a) {
       for (bp_value& value : a.values) value.flags |= UINT64_C(1) << 50;
       return true;
     }},
};

CaseOutcome claim_broken(Kit& kit, const CorpusGraph& source, GraphFault break_it,
                         bool in_attributes) {
  const auto problem = raw_problem(kit, source);
  if (!problem.ok()) return CaseOutcome::mistrusted(problem.status().message());
  Session& s = session(kit);
  const bp_graph& graph = (*problem)->arrays->get();
  if (s.claims(graph).claimed.empty()) return CaseOutcome::unsupported("not claimed");
  OwnArrays arrays(graph);
  if (!break_it(arrays)) return CaseOutcome::unsupported("the graph has nothing of the kind");
  testing::ClaimAnswer answer;
  const testing::Outcome outcome = testing::Outcome::take(s.api().claims(
      s.plugin(), &s.info(), &arrays.graph, reinterpret_cast<bp_claim_sink*>(&answer)));
  if (!outcome.ok()) return {};  // that is a refusal, too
  for (const bp_node& node : arrays.nodes)
    if ((!in_attributes || node.attribute_count != 0) &&
        std::ranges::find(answer.claimed, node.id) != answer.claimed.end())
      return CaseOutcome::fail("it claims a node that it cannot understand");
  return {};
}

}  // namespace

void add_misuse_cases(const Corpus& corpus, std::vector<Case>& out) {
  const auto add = [&](const std::string& name, int level, std::function<CaseOutcome(Kit&)> run) {
    add_guarded(out, "misuse:" + name, level, Door::kTable, std::move(run));
  };
  for (const Misuse& misuse : kMisuses) add(misuse.name, 0, misuse.run);
  std::size_t number = 0;
  for (const CorpusGraph* source : some_graphs(corpus, 24)) {
    const int level = number++ < 6 ? 0 : 1;
    for (const auto& fault : kGraphFaults)
      add(std::string(fault.name) + ":" + source->name, level, [source, &fault](Kit& kit) {
        return claim_broken(kit, *source, fault.break_it, fault.in_attributes);
      });
    for (const auto& fault : kBindingFaults)
      add(std::string(fault.name) + ":" + source->name, level, [source, &fault](Kit& kit) {
        return with_problem(kit, *source, session(kit), [&](RawProblem& problem, Session& s) {
          return execute_broken(problem, s, fault.break_it);
        });
      });
  }
}

}  // namespace backplane::conformance
