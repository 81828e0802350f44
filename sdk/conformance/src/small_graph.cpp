#include "sdk/conformance/src/small_graph.h"

#include <algorithm>
#include <cstring>

#include "core/ir/text.h"
#include "core/runtime/plugin/claims.h"
#include "sdk/conformance/src/elements.h"
#include "sdk/conformance/src/oracle.h"

namespace backplane::conformance {
namespace {

std::string vector_of(const std::string& type, std::int64_t count) {
  return type + "[" + std::to_string(count) + "]";
}

bool same_element(ir::DType type, const std::uint8_t* a, const std::uint8_t* b) {
  if (type == ir::DType::kBool) return (*a != 0) == (*b != 0);
  return std::memcmp(a, b, static_cast<std::size_t>(ir::dtype_bytes(type))) == 0;
}

}  // namespace

std::string vector_graph(std::int64_t count, const std::vector<std::string>& inputs,
                         const std::string& body, const std::vector<std::string>& results) {
  std::string text = "graph @small(", types, names;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    text += (i ? ", %" : "%") + std::to_string(i) + ": " + vector_of(inputs[i], count);
  for (const std::string& result : results) {
    // "%3: f16", or "%3: f16[]" of a type that is no vector.
    const std::size_t colon = result.find(": ");
    const std::string type = result.substr(colon + 2);
    types += (types.empty() ? "" : ", ") +
             (type.find('[') == std::string::npos ? vector_of(type, count) : type);
    names += (names.empty() ? "" : ", ") + result.substr(0, colon);
  }
  return text + ") -> (" + types + ") {\n" + body + "  return " + names + "\n}\n";
}

Outcome open_for(Kit& kit, const ir::Graph& graph, runtime::Device*& out_device,
                 runtime::Device*& out_oracle) {
  const auto device = kit.device();
  if (!device.ok()) return Outcome::fail(device.status().message());
  const auto oracle = kit.oracle();
  if (!oracle.ok()) return Outcome::mistrusted(oracle.status().message());
  const runtime::GraphArrays arrays(graph);
  const auto target = runtime::query_claims(**device, graph, arrays);
  if (!target.ok()) return Outcome::fail(target.status().message());
  std::size_t claimed = 0;
  for (const auto& claim : target->claims) claimed += claim.nodes.size();
  if (claimed != graph.nodes.size()) return Outcome::unsupported("not claimed");
  out_device = *device;
  out_oracle = *oracle;
  return {};
}

Outcome run_once(runtime::Device& device, const ir::Graph& graph, std::vector<Bytes>& inputs,
                 std::vector<Bytes>& out_results) {
  std::vector<void*> at;
  for (Bytes& input : inputs) at.push_back(input.data());
  const auto made = GraphRun::make(graph, device, nullptr, {}, at);
  if (!made.ok()) return Outcome::fail("compile: " + made.status().message());
  GraphRun::Results results;
  const Status status = (*made)->call(at, results);
  if (!status.ok()) return Outcome::fail("call: " + status.message());
  for (std::size_t r = 0; r < graph.outputs.size(); ++r) out_results.push_back(results.output(r));
  return {};
}

Outcome run_small_graph(Kit& kit, const ir::Graph& graph, std::vector<Bytes> inputs,
                        std::string_view rule) {
  runtime::Device *device = nullptr, *oracle = nullptr;
  if (Outcome out = open_for(kit, graph, device, oracle); out.verdict != Verdict::kPass) return out;
  const auto expected = expect(graph, *oracle, {}, inputs);
  if (!expected.ok()) return Outcome::mistrusted("the oracle does not take it");
  std::vector<Bytes> results;
  if (Outcome out = run_once(*device, graph, inputs, results); out.verdict != Verdict::kPass)
    return out;
  for (std::size_t r = 0; r < graph.outputs.size(); ++r) {
    const ir::DType type = graph.values[graph.outputs[r]].type.dtype;
    const Bytes& found = results[r];
    const auto bytes = static_cast<std::size_t>(ir::dtype_bytes(type));
    for (std::size_t i = 0; i < found.size(); i += bytes) {
      if (same_element(type, found.data() + i, expected->results[r].data() + i)) continue;
      const auto print = [&](const Bytes& of) {
        return print_number(type, read_number(type, of.data() + i));
      };
      Outcome out = Outcome::fail(
          "result " + std::to_string(r) + ", element " + std::to_string(i / bytes) + ": expected " +
          print(expected->results[r]) + ", found " + print(found) + "; " + std::string(rule));
      out.graph = ir::print(graph);
      return out;
    }
  }
  return {};
}

}  // namespace backplane::conformance
