#include "sdk/conformance/src/kit.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace backplane::conformance {
namespace {

Result<runtime::Device*> open(std::unique_ptr<runtime::Plugin>& plugin, const std::string& path,
                              std::uint32_t device) {
  if (plugin == nullptr) {
    BP_ASSIGN_OR_RETURN(plugin, runtime::Plugin::load(path));
  }
  return plugin->device(device);
}

Result<std::vector<CorpusGraph>> read_section(const std::string& folder, const char* name) {
  const std::string path = folder + "/" + name + ".txt";
  std::ifstream file(path);
  if (!file) return Status(Code::kNotFound, path + " cannot be read");
  std::stringstream text;
  text << file.rdbuf();
  auto out = parse_corpus(text.str());
  if (!out.ok()) return out.take_status().with_context("reading " + path);
  return out;
}

// Outputs that are inputs, or views, have no memory of their own to look at.
bool is_plain(const CorpusGraph& source) {
  if (!source.name.ends_with("/f32/0") || source.recipes.empty()) return false;
  const auto graph = source.graph();
  return graph.ok() &&
         std::ranges::none_of(
             graph->nodes,
             [](const ir::Node& node) { return node.op->op_class == ir::OpClass::kView; }) &&
         std::ranges::none_of(graph->outputs, [&](ir::ValueId output) {
           return graph->values[output].producer == ir::kNone;
         });
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "pass";
    case Verdict::kFail:
      return "fail";
    case Verdict::kUnsupported:
      return "unsupported";
    case Verdict::kUndelegated:
      return "undelegated";
    case Verdict::kMistrusted:
      return "mistrusted";
  }
  return "fail";
}

std::string_view door_name(Door door) {
  switch (door) {
    case Door::kAny:
      return "any";
    case Door::kHost:
      return "host";
    case Door::kTable:
      return "table";
    case Door::kAlone:
      return "alone";
  }
  return "alone";
}

Result<runtime::Device*> Kit::device() { return open(plugin_, files_.plugin, files_.device); }
Result<runtime::Device*> Kit::oracle() { return open(oracle_, files_.oracle, 0); }

Result<Corpus> Corpus::read(const std::string& folder) {
  Corpus out;
  BP_ASSIGN_OR_RETURN(out.operators, read_section(folder, "operators"));
  BP_ASSIGN_OR_RETURN(out.gradients, read_section(folder, "gradients"));
  BP_ASSIGN_OR_RETURN(out.random, read_section(folder, "random"));
  for (const CorpusGraph& graph : out.operators)
    if (is_plain(graph)) out.plain.push_back(&graph);
  return out;
}

std::vector<Case> all_cases(const Corpus& corpus) {
  std::vector<Case> out;
  add_package_cases(out);
  add_negotiation_cases(corpus, out);
  add_life_cases(corpus, out);
  add_memory_cases(corpus, out);
  add_misuse_cases(corpus, out);
  add_service_cases(corpus, out);
  add_graph_cases(corpus, out);
  add_unary_cases(corpus, out);
  add_digits_cases(out);
  add_element_cases(out);
  return out;
}

}  // namespace backplane::conformance
