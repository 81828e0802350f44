#include "sdk/conformance/src/raw.h"

#include <algorithm>
#include <filesystem>

#include "core/ir/view.h"
#include "sdk/conformance/src/elements.h"
#include "sdk/conformance/src/filling.h"

namespace backplane::conformance {
namespace {

testing::HostTensor tensor_of(const RawProblem& problem, ir::ValueId value) {
  const ir::TensorType& type = problem.graph.values[value].type;
  return {runtime::to_bp_dtype(type.dtype), ir::resolve(type.dims, problem.classes),
          ir::resolve(type.strides, problem.classes)};
}

}  // namespace

std::string RawProblem::difference(const std::vector<testing::HostTensor>& results) const {
  std::vector<Bytes> actual;
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const ir::TensorType& type = graph.values[graph.outputs[i]].type;
    actual.push_back(
        make_dense(type.dtype, reinterpret_cast<const std::uint8_t*>(results[i].data()),
                   ir::resolve(type.dims, classes), ir::resolve(type.strides, classes)));
  }
  return judge(graph, expected, actual, {}).wrong;
}

std::vector<testing::HostTensor> RawProblem::results() const {
  std::vector<testing::HostTensor> out;
  for (const ir::ValueId output : graph.outputs) out.push_back(tensor_of(*this, output));
  return out;
}

Result<std::unique_ptr<RawProblem>> raw_problem(Kit& kit, const CorpusGraph& source) {
  auto out = std::make_unique<RawProblem>();
  BP_ASSIGN_OR_RETURN(out->graph, source.graph());
  BP_ASSIGN_OR_RETURN(out->classes, class_values(out->graph, {}));
  BP_ASSIGN_OR_RETURN(runtime::Device* const oracle, kit.oracle());
  std::vector<Bytes> inputs = fill(out->graph, source.recipes, out->classes, Filling::kNumbers, 1);
  BP_ASSIGN_OR_RETURN(out->expected, expect(out->graph, *oracle, out->classes, inputs));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    out->inputs.push_back(tensor_of(*out, out->graph.inputs[i]));
    out->inputs.back().set_memory(inputs[i]);
  }
  out->arrays = std::make_unique<runtime::GraphArrays>(out->graph);
  return out;
}

std::vector<const CorpusGraph*> some_graphs(const Corpus& corpus, std::size_t count) {
  const std::vector<const CorpusGraph*>& all = corpus.plain;
  std::vector<const CorpusGraph*> out;
  for (std::size_t i = 0; i < count && i < all.size(); ++i)
    out.push_back(all[i * all.size() / std::min(count, all.size())]);
  return out;
}

void require_claimed(testing::Session& s, const bp_graph& graph) {
  if (s.claims(graph).claimed.size() < graph.node_count)
    throw testing::Failure("not claimed", BP_UNSUPPORTED);
}

Outcome with_problem(Kit& kit, const CorpusGraph& source, testing::Session& s,
                     const std::function<Outcome(RawProblem&, testing::Session&)>& body) {
  const auto problem = raw_problem(kit, source);
  if (!problem.ok()) return Outcome::mistrusted(problem.status().message());
  require_claimed(s, (*problem)->arrays->get());
  return body(**problem, s);
}

bp_compile_args compile_args(testing::Session& s, const bp_graph& graph,
                             std::vector<bp_io_request>& requests) {
  requests.assign(graph.input_count + graph.output_count, {});
  for (auto& request : requests) request.layout.kind = BP_LAYOUT_STRIDED;
  auto args = sdk::make<bp_compile_args>();
  args.device = s.device();
  args.info = &s.info();
  args.graph = &graph;
  args.inputs = requests.data();
  args.outputs = requests.data() + graph.input_count;
  args.io_stride = sizeof(bp_io_request);
  return args;
}

Bound bind(testing::Session& s, RawProblem& problem) {
  Bound out;
  const auto range_of = [&](std::uint64_t bytes) {
    return bytes != 0 ? testing::Session::range(s.buffer(bytes), bytes) : bp_range{};
  };
  for (testing::HostTensor& input : problem.inputs) {
    out.inputs.push_back(range_of(input.bytes()));
    if (input.bytes() != 0)
      testing::require_ok(
          s.copy(testing::Session::host_range(input.data(), input.bytes()), out.inputs.back()));
  }
  for (const ir::ValueId output : problem.graph.outputs)
    out.outputs.push_back(range_of(memory_bytes(problem.graph, output, problem.classes)));
  return out;
}

BoundCall bound_call(testing::Session& s, bp_executable* executable, const Bound& bound) {
  BoundCall out{{}, sdk::make<bp_execute_args>()};
  for (const std::vector<bp_range>* ranges : {&bound.inputs, &bound.outputs})
    for (const bp_range& range : *ranges) out.bindings.emplace_back().range = range;
  out.args.inputs = out.bindings.data();
  out.args.outputs = out.bindings.data() + bound.inputs.size();
  out.args.binding_stride = sizeof(bp_binding);
  if (const std::uint64_t bytes = s.describe(executable).workspace_bytes; bytes != 0)
    out.args.workspace = testing::Session::range(s.buffer(bytes), bytes);
  return out;
}

std::size_t entries_of(const char* folder) {
  std::error_code error;
  std::size_t count = 0;
  for (std::filesystem::directory_iterator entry(folder, error), end; entry != end;
       entry.increment(error))
    ++count;
  return count;
}

testing::Session& session(Kit& kit) {
  // Never closed: cases of the process's end have processes of their own.
  static auto* const made =
      new testing::Session(testing::load_plugin(kit.files().plugin), kit.files().device);
  return *made;
}

Outcome guarded(const std::function<Outcome()>& body) {
  try {
    return body();
  } catch (const testing::Failure& failure) {
    if (failure.code() == BP_UNSUPPORTED) return Outcome::unsupported(failure.what());
    return Outcome::fail(failure.what());
  } catch (const std::exception& exception) {
    return Outcome::fail(std::string("an exception crossed the boundary: ") + exception.what());
  } catch (...) {
    return Outcome::fail("an exception of an unknown kind crossed the boundary");
  }
}

void add_guarded(std::vector<Case>& out, std::string id, int level, Door door,
                 std::function<Outcome(Kit&)> run) {
  out.push_back({std::move(id), level, door,
                 [run = std::move(run)](Kit& kit) { return guarded([&] { return run(kit); }); }});
}

}  // namespace backplane::conformance
