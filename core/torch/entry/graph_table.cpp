#include "core/torch/entry/graph_table.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <vector>

#include "core/ir/text.h"

namespace backplane::call {

namespace {

using Row = std::array<std::string, 4>;

// "%div = aten.div.Tensor(%a, %add, rounding_mode=none) : f32[3]": what stands between the
// brackets.
std::string arguments_of(const std::string& node) {
  const std::size_t begin = node.find('('), end = node.rfind(") :");
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  return node.substr(begin + 1, end - begin - 1);
}

// "  constant %number: f32[] = [1.0]", as the printer has them.
void add_constants(const ir::Graph& graph, std::vector<Row>& rows) {
  std::istringstream text(ir::print(graph));
  for (std::string line; std::getline(text, line);) {
    const std::size_t name = line.find("constant %"), type = line.find(": "),
                      value = line.find(" = ");
    if (name != 2 || type == std::string::npos || value == std::string::npos) continue;
    rows.push_back({"constant", line.substr(12, type - 12), line.substr(type + 2, value - type - 2),
                    line.substr(value + 3)});
  }
}

}  // namespace

std::string graph_table(const record::Recorded& recorded, const std::vector<std::string>& sources) {
  const ir::Graph& graph = recorded.graph;
  std::vector<Row> rows{{"opcode", "name", "target", "args"}};
  for (std::size_t i = 0; i < recorded.border.argument_count; ++i) {
    const ir::Value& value = graph.values[graph.inputs[i]];
    rows.push_back({"input", value.name, ir::print_type(graph, value.type),
                    i < sources.size() ? sources[i] : ""});
  }
  add_constants(graph, rows);
  for (std::size_t n = 0; n < recorded.forward_node_count; ++n) {
    const ir::Node& node = graph.nodes[n];
    std::string names;
    for (const ir::ValueId result : node.results)
      if (result != ir::kNone) names += (names.empty() ? "" : ", ") + graph.values[result].name;
    rows.push_back({"call", names, std::string(node.op->name),
                    arguments_of(ir::print_node(graph, static_cast<ir::NodeId>(n)))});
  }
  std::string outputs;
  for (std::size_t i = 0; i < recorded.border.forward_output_count; ++i)
    outputs += (outputs.empty() ? "%" : ", %") + graph.values[graph.outputs[i]].name;
  rows.push_back({"output", "output", "output", outputs});

  std::array<std::size_t, 3> widths{};
  for (const Row& row : rows)
    for (std::size_t c = 0; c < widths.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < widths.size(); ++c)
      line += row[c] + std::string(widths[c] - row[c].size() + 2, ' ');
    line += row[3];
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace backplane::call
