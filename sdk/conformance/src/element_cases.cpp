// How elements are read: truth values whose byte is neither 0 nor 1, and whole numbers that become
// those of a 16-bit float before they are calculated with.
#include "core/ir/text.h"
#include "sdk/conformance/src/elements.h"
#include "sdk/conformance/src/kit.h"
#include "sdk/conformance/src/small_graph.h"

namespace backplane::conformance {
namespace {

constexpr std::int64_t kCount = 512;

struct Row {
  std::string_view name;
  std::vector<std::string> inputs;
  std::string node;  // of %0, %1, ...
  std::string result;
};

// Of bools: %0 has every byte, %1 each in another order.
const std::vector<Row>& truths() {
  static const std::vector<Row> rows{
      {"to-f32", {"b8"}, "aten._to_copy(%0, dtype=f32)", "f32"},
      {"to-i64", {"b8"}, "aten._to_copy(%0, dtype=i64)", "i64"},
      {"to-u8", {"b8"}, "aten._to_copy(%0, dtype=u8)", "u8"},
      {"not", {"b8"}, "aten.logical_not(%0)", "b8"},
      {"bitwise-not", {"b8"}, "aten.bitwise_not(%0)", "b8"},
      {"and", {"b8", "b8"}, "aten.bitwise_and.Tensor(%0, %1)", "b8"},
      {"or", {"b8", "b8"}, "aten.bitwise_or.Tensor(%0, %1)", "b8"},
      {"xor", {"b8", "b8"}, "aten.bitwise_xor.Tensor(%0, %1)", "b8"},
      {"eq", {"b8", "b8"}, "aten.eq.Tensor(%0, %1)", "b8"},
      {"lt", {"b8", "b8"}, "aten.lt.Tensor(%0, %1)", "b8"},
      {"where", {"b8", "f32", "f32"}, "aten.where.self(%0, %1, %2)", "f32"},
      {"times", {"b8", "f32"}, "aten.mul.Tensor(%0, %1)", "f32"},
      {"sum", {"b8"}, "aten.sum.dim_IntList(%0, dim=[0], keepdim=false, dtype=none)", "i64[]"},
      {"any", {"b8"}, "aten.any(%0)", "b8[]"},
  };
  return rows;
}

// The whole numbers of %1 have more digits than the half of %0.
std::vector<Row> mixed(const std::string& half) {
  return {
      {"mul", {half, "i64"}, "aten.mul.Tensor(%0, %1)", half},
      {"mul-i32", {half, "i32"}, "aten.mul.Tensor(%0, %1)", half},
      {"maximum", {half, "i64"}, "aten.maximum(%0, %1)", half},
      {"gt", {half, "i64"}, "aten.gt.Tensor(%0, %1)", "b8"},
      {"eq", {half, "i64"}, "aten.eq.Tensor(%0, %1)", "b8"},
  };
}

std::vector<Bytes> inputs_of(const ir::Graph& graph) {
  std::vector<Bytes> out;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const ir::DType type = graph.values[graph.inputs[i]].type.dtype;
    const auto bytes = static_cast<std::size_t>(ir::dtype_bytes(type));
    Bytes& memory = out.emplace_back(static_cast<std::size_t>(kCount) * bytes);
    for (std::int64_t n = 0; n < kCount; ++n) {
      std::uint8_t* const at = memory.data() + static_cast<std::size_t>(n) * bytes;
      if (type == ir::DType::kBool)
        *at = static_cast<std::uint8_t>(i == 0 ? n : (n % 3 == 0 ? 0 : n / 2));
      else if (ir::is_float(type))
        write_number(type, at, {static_cast<double>(n % 7) / 4 - 0.5});
      else
        write_number(type, at, {static_cast<double>(2040 + n)});
    }
  }
  return out;
}

Outcome run(Kit& kit, const Row& row, std::string_view rule) {
  const bool is_vector = row.result.find('[') == std::string::npos;
  const std::string type = is_vector ? row.result + "[" + std::to_string(kCount) + "]" : row.result;
  const std::string made = "%" + std::to_string(row.inputs.size());
  const auto graph = ir::parse(vector_graph(kCount, row.inputs,
                                            "  " + made + " = " + row.node + " : " + type + "\n",
                                            {made + ": " + row.result}));
  if (!graph.ok()) return Outcome::mistrusted(graph.status().message());
  return run_small_graph(kit, *graph, inputs_of(*graph), rule);
}

void add(std::vector<Case>& out, std::string id, const Row& row, std::string_view rule) {
  Case& one = out.emplace_back();
  one.id = std::move(id) + std::string(row.name);
  one.level = 2;
  one.run = [row, rule](Kit& kit) { return run(kit, row, rule); };
}

}  // namespace

void add_element_cases(std::vector<Case>& out) {
  for (const Row& row : truths())
    add(out, "truth:", row, "a byte other than 0 is true, whichever it is");
  for (const std::string half : {"f16", "bf16"})
    for (const Row& row : mixed(half))
      add(out, "mixed:" + half + "/", row,
          "a whole number beside a 16-bit float is rounded to that type first");
}

}  // namespace backplane::conformance
