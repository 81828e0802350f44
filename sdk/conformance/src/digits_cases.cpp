// The digits of 16-bit floats that stay inside a kernel.
#include <cstring>

#include "core/ir/text.h"
#include "core/runtime/plugin/claims.h"
#include "sdk/conformance/src/elements.h"
#include "sdk/conformance/src/kit.h"
#include "sdk/conformance/src/oracle.h"

namespace backplane::conformance {
namespace {

constexpr std::int64_t kCount = 1024;

// What shows whether its operand has more digits than its type.
struct Reader {
  std::string_view name, node, type;
};
constexpr Reader kReaders[] = {
    {"floor", "aten.floor(%2)", ""},
    {"round", "aten.round(%2)", ""},
    {"isinf", "aten.isinf(%2)", "b8"},
    {"gt", "aten.gt.Tensor(%2, %0)", "b8"},
    {"to-f32", "aten._to_copy(%2, dtype=f32)", "f32"},
    {"to-i32", "aten._to_copy(%2, dtype=i32)", "i32"},
};

// The product is stored too, or stays inside.
std::string text_of(const Reader& reader, const std::string& half, bool stores) {
  const auto dims = "[" + std::to_string(kCount) + "]";
  const std::string in = half + dims;
  const std::string out = (reader.type.empty() ? half : std::string(reader.type)) + dims;
  return "graph @digits(%0: " + in + ", %1: " + in + ") -> (" + (stores ? in + ", " : "") + out +
         ") {\n  %2 = aten.mul.Tensor(%0, %1) : " + in + "\n  %3 = " + std::string(reader.node) +
         " : " + out + "\n  return " + (stores ? "%2, " : "") + "%3\n}\n";
}

// Products have at most 16 digits, so that float32 has them exactly and there is one way to round.
std::vector<Bytes> inputs_of(ir::DType half) {
  std::vector<Bytes> out(2, Bytes(static_cast<std::size_t>(kCount) * 2));
  for (std::int64_t i = 0; i < kCount; ++i) {
    const auto at = static_cast<std::size_t>(i) * 2;
    double value = static_cast<double>(i) / 8 - 64;
    if (half == ir::DType::kFloat16 && i % 64 == 0) value *= 1000;  // some products overflow
    write_number(half, out[0].data() + at, {value});
    write_number(half, out[1].data() + at, {141.0 / 128});
  }
  return out;
}

Outcome run_one(runtime::Device& device, runtime::Device& oracle, const ir::Graph& graph) {
  std::vector<Bytes> inputs = inputs_of(graph.values[graph.inputs[0]].type.dtype);
  const auto expected = expect(graph, oracle, {}, inputs);
  if (!expected.ok()) return Outcome::mistrusted("the oracle does not take it");
  std::vector<void*> at{inputs[0].data(), inputs[1].data()};
  auto made = GraphRun::make(graph, device, nullptr, {}, at);
  if (!made.ok()) return Outcome::fail("compile: " + made.status().message());
  GraphRun::Results results;
  const Status status = (*made)->call(at, results);
  if (!status.ok()) return Outcome::fail("call: " + status.message());
  for (std::size_t r = 0; r < graph.outputs.size(); ++r) {
    const ir::DType type = graph.values[graph.outputs[r]].type.dtype;
    const Bytes found = results.output(r);
    const auto bytes = static_cast<std::size_t>(ir::dtype_bytes(type));
    for (std::size_t i = 0; i < found.size(); i += bytes) {
      if (std::memcmp(found.data() + i, expected->results[r].data() + i, bytes) == 0) continue;
      const auto print = [&](const Bytes& of) {
        return print_number(type, read_number(type, of.data() + i));
      };
      Outcome out =
          Outcome::fail("result " + std::to_string(r) + ", element " + std::to_string(i / bytes) +
                        ": expected " + print(expected->results[r]) + ", found " + print(found) +
                        "; the product has to be read with the digits of its type");
      out.graph = ir::print(graph);
      return out;
    }
  }
  return {};
}

Outcome run(Kit& kit, const Reader& reader, const std::string& half) {
  auto device = kit.device();
  if (!device.ok()) return Outcome::fail(device.status().message());
  auto oracle = kit.oracle();
  if (!oracle.ok()) return Outcome::mistrusted(oracle.status().message());
  for (const bool stores : {false, true}) {
    const auto graph = ir::parse(text_of(reader, half, stores));
    if (!graph.ok()) return Outcome::mistrusted(graph.status().message());
    const runtime::GraphArrays arrays(*graph);
    const auto target = runtime::query_claims(**device, *graph, arrays);
    if (!target.ok()) return Outcome::fail(target.status().message());
    std::size_t claimed = 0;
    for (const auto& claim : target->claims) claimed += claim.nodes.size();
    if (claimed != graph->nodes.size()) return Outcome::unsupported("not claimed");
    Outcome out = run_one(**device, **oracle, *graph);
    if (out.verdict != Verdict::kPass) return out;
  }
  return {};
}

}  // namespace

void add_digits_cases(std::vector<Case>& out) {
  for (const std::string half : {"f16", "bf16"})
    for (const Reader& reader : kReaders) {
      Case& one = out.emplace_back();
      one.id = "digits:" + half + "/" + std::string(reader.name);
      one.level = 2;
      one.run = [&reader, half](Kit& kit) { return run(kit, reader, half); };
    }
}

}  // namespace backplane::conformance
