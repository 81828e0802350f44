#include "sdk/conformance/src/raw.h"

#include <cstring>

#include "core/ir/view.h"
#include "sdk/conformance/src/elements.h"
#include "sdk/conformance/src/filling.h"

namespace backplane::conformance {

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

Result<std::unique_ptr<RawProblem>> raw_problem(Kit& kit, const CorpusGraph& source) {
  auto out = std::make_unique<RawProblem>();
  BP_ASSIGN_OR_RETURN(out->graph, source.graph());
  BP_ASSIGN_OR_RETURN(out->classes, class_values(out->graph, {}));
  BP_ASSIGN_OR_RETURN(runtime::Device* const oracle, kit.oracle());
  std::vector<Bytes> inputs = fill(out->graph, source.recipes, out->classes, Filling::kNumbers, 1);
  BP_ASSIGN_OR_RETURN(out->expected, expect(out->graph, *oracle, out->classes, inputs));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ir::TensorType& type = out->graph.values[out->graph.inputs[i]].type;
    testing::HostTensor& tensor = out->inputs.emplace_back(runtime::to_bp_dtype(type.dtype),
                                                           ir::resolve(type.dims, out->classes),
                                                           ir::resolve(type.strides, out->classes));
    tensor.set_memory(inputs[i]);
  }
  out->arrays = std::make_unique<runtime::GraphArrays>(out->graph);
  return out;
}

std::vector<const CorpusGraph*> some_graphs(const Corpus& corpus, std::size_t count) {
  std::vector<const CorpusGraph*> fitting;
  for (const CorpusGraph& graph : corpus.operators) {
    if (!graph.name.ends_with("/f32/0") || graph.recipes.empty()) continue;
    // Outputs that are inputs, or views, have no memory of their own to look at.
    const auto parsed = graph.graph();
    if (!parsed.ok()) continue;
    bool plain = true;
    for (const ir::Node& node : parsed->nodes)
      plain = plain && node.op->op_class != ir::OpClass::kView;
    for (const ir::ValueId output : parsed->outputs)
      plain = plain && parsed->values[output].producer != ir::kNone;
    if (plain) fitting.push_back(&graph);
  }
  std::vector<const CorpusGraph*> out;
  for (std::size_t i = 0; i < count && i < fitting.size(); ++i)
    out.push_back(fitting[i * fitting.size() / std::min(count, fitting.size())]);
  return out;
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
    if (failure.code() == BP_UNSUPPORTED) return {Verdict::kUnsupported, failure.what(), 0, {}, {}};
    return Outcome::fail(failure.what());
  } catch (const std::exception& exception) {
    return Outcome::fail(std::string("an exception crossed the boundary: ") + exception.what());
  } catch (...) {
    return Outcome::fail("an exception of an unknown kind crossed the boundary");
  }
}

}  // namespace backplane::conformance
