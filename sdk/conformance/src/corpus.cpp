#include "sdk/conformance/src/corpus.h"

#include <sstream>

#include "core/ir/text.h"

namespace backplane::conformance {
namespace {

Status parse_recipe(const std::string& line, Recipe& out) {
  std::istringstream words(line);
  std::string kind;
  words >> kind;
  if (kind == "range") {
    words >> out.low >> out.high;
    if (words && out.low <= out.high) return {};
  } else if (kind == "values") {
    for (std::int64_t value = 0; words >> value;) out.values.push_back(value);
    if (words.eof()) return {};
  }
  return {Code::kParseError, "\"" + line + "\": want \"range LOW HIGH\" or \"values N...\""};
}

// "sizes s0=4 s1=8"
Status parse_sizes(const std::string& line, std::map<std::string, std::int64_t>& out) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  while (words >> word) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) return {Code::kParseError, "\"" + line + "\": want NAME=SIZE"};
    std::istringstream(word.substr(equals + 1)) >> out[word.substr(0, equals)];
  }
  return {};
}

}  // namespace

Result<ir::Graph> CorpusGraph::graph() const {
  BP_ASSIGN_OR_RETURN(ir::Graph graph, ir::parse(text));
  if (graph.inputs.size() != recipes.size())
    return Status(Code::kParseError, name + " has " + std::to_string(graph.inputs.size()) +
                                         " inputs and " + std::to_string(recipes.size()) +
                                         " recipes");
  return graph;
}

Result<std::vector<CorpusGraph>> parse_corpus(std::string_view text) {
  std::vector<CorpusGraph> out;
  std::istringstream lines{std::string(text)};
  bool in_graph = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("case ")) {
      out.emplace_back().name = line.substr(5);
      in_graph = false;
    } else if (out.empty()) {
      return Status(Code::kParseError, "the corpus does not begin with a case");
    } else if (line == "end") {
      in_graph = false;
    } else if (in_graph || line.starts_with("graph ")) {
      in_graph = true;
      out.back().text += line + "\n";
    } else {
      const Status status = line.starts_with("sizes ")
                                ? parse_sizes(line, out.back().sizes.emplace_back())
                                : parse_recipe(line, out.back().recipes.emplace_back());
      if (!status.ok()) return Status(Code::kParseError, out.back().name + ": " + status.message());
    }
  }
  return out;
}

}  // namespace backplane::conformance
