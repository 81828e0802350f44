// The digits of 16-bit floats that stay inside a kernel.
#include "core/ir/text.h"
#include "sdk/conformance/src/elements.h"
#include "sdk/conformance/src/kit.h"
#include "sdk/conformance/src/small_graph.h"

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
  const std::string dims = "[" + std::to_string(kCount) + "]";
  const std::string type = reader.type.empty() ? half : std::string(reader.type);
  const std::string body = "  %2 = aten.mul.Tensor(%0, %1) : " + half + dims +
                           "\n  %3 = " + std::string(reader.node) + " : " + type + dims + "\n";
  std::vector<std::string> results;
  if (stores) results.push_back("%2: " + half);
  results.push_back("%3: " + type);
  return vector_graph(kCount, {half, half}, body, results);
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

Outcome run(Kit& kit, const Reader& reader, const std::string& half) {
  for (const bool stores : {false, true}) {
    const auto graph = ir::parse(text_of(reader, half, stores));
    if (!graph.ok()) return Outcome::mistrusted(graph.status().message());
    const ir::DType type = graph->values[graph->inputs[0]].type.dtype;
    Outcome out = run_small_graph(kit, *graph, inputs_of(type),
                                  "the product has to be read with the digits of its type");
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
