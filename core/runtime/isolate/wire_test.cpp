#include "core/runtime/isolate/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ir/text.h"
#include "core/runtime/plugin/graph_arrays.h"

namespace backplane::runtime {
namespace {

constexpr std::string_view kText = R"(
graph @wire(%x: f32[s0, 4], %w: f32[4, 4] static) -> (f32[s0, 4]) classes(s0: 3 [2, 64]) {
  %0 = aten.mm(%x, %w) : f32[s0, 4]
  %1 = aten.slice.Tensor(%0, dim=1, start=0, end=4) : f32[s0, 4]
  %2 = aten.relu(%1) : f32[s0, 4]
  return %2
})";

std::string text_of(bp_string text) { return {text.data != nullptr ? text.data : "", text.size}; }

// Everything that a plugin may read, as words.
std::string words_of(const bp_graph& graph) {
  std::string out = text_of(graph.name);
  const auto add = [&](auto... numbers) { ((out += " " + std::to_string(numbers)), ...); };
  for (std::size_t i = 0; i < graph.node_count; ++i) {
    const bp_node& n = *bp_graph_node(&graph, i);
    add(n.id, n.op, n.first_operand, n.operand_count, n.first_result, n.result_count,
        n.first_attribute, n.attribute_count, n.effects);
    out += text_of(n.location);
  }
  for (std::size_t i = 0; i < graph.value_count; ++i) {
    const bp_value& v = *bp_graph_value(&graph, i);
    add(v.id, v.rank, v.flags, v.dtype.code, v.dtype.bits, v.first_dim, v.producer, v.alias_of,
        v.alias_offset, v.layout.kind, v.data_bytes);
    for (std::size_t b = 0; b < v.data_bytes; ++b) add(static_cast<const char*>(v.data)[b]);
  }
  for (std::size_t i = 0; i < graph.attribute_count; ++i) {
    const bp_attribute& a = *bp_graph_attribute(&graph, i);
    out += text_of(a.name) + text_of(a.text);
    add(a.kind, a.integer, a.real, a.is_class, a.count);
    for (std::size_t k = 0; k < a.count && a.integers != nullptr; ++k) add(a.integers[k]);
    for (std::size_t k = 0; k < a.count && a.class_flags != nullptr; ++k) add(a.class_flags[k]);
  }
  for (std::size_t i = 0; i < graph.op_count; ++i) out += text_of(bp_graph_op(&graph, i)->name);
  for (std::size_t i = 0; i < graph.dim_class_count; ++i) {
    const bp_dim_class& c = *bp_graph_dim_class(&graph, i);
    add(c.min, c.max, c.divisor, c.hint);
    out += text_of(c.name) + text_of(c.expression);
  }
  for (std::size_t i = 0; i < graph.index_count; ++i) add(graph.indices[i]);
  for (std::size_t i = 0; i < graph.dim_count; ++i) add(graph.dims[i], graph.strides[i]);
  for (std::size_t i = 0; i < graph.input_count; ++i) add(graph.inputs[i]);
  for (std::size_t i = 0; i < graph.output_count; ++i) add(graph.outputs[i]);
  return out;
}

std::string wired() {
  const auto graph = ir::parse(kText);
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  if (!graph.ok()) return {};
  const GraphArrays arrays(*graph);
  WireWriter out;
  put_graph(out, arrays.get());
  WireReader in(out.bytes());
  const WireGraph read(in);
  EXPECT_TRUE(in.ok());
  EXPECT_EQ(in.left(), 0u);
  EXPECT_EQ(words_of(read.get()), words_of(arrays.get()));
  return out.bytes();
}

TEST(Wire, AGraphArrivesAsItIs) { EXPECT_FALSE(wired().empty()); }

TEST(Wire, WhatIsCutShortIsNotReadPastItsEnd) {
  const std::string whole = wired();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string part = whole.substr(0, size);
    WireReader in(part);
    const WireGraph read(in);
    EXPECT_FALSE(in.ok()) << size;
  }
}

TEST(Wire, AnAbsurdLengthIsNoAllocation) {
  WireWriter out;
  out.put<std::uint64_t>(std::uint64_t{1} << 62);
  WireReader in(out.bytes());
  EXPECT_TRUE(in.array<std::int64_t>().empty());
  EXPECT_FALSE(in.ok());
  EXPECT_EQ(in.get<std::uint32_t>(), 0u);
}

TEST(Wire, ADescriptionKeepsItsTextsAndRates) {
  bp_device_info info{};
  info.struct_size = sizeof info;
  info.name = {"Acme", 4};
  info.torch_device = {"cuda:0", 6};
  info.memory_bytes = 77;
  const bp_device_rate rate{{BP_DTYPE_FLOAT, 32, 1}, 0, 3e9};
  info.rates = &rate;
  info.rate_count = 1;
  info.rate_stride = sizeof rate;
  WireWriter out;
  put_info(out, info);
  WireReader in(out.bytes());
  WireInfo read(in);
  ASSERT_TRUE(in.ok());
  EXPECT_EQ(text_of(read.get().name), "Acme");
  EXPECT_EQ(text_of(read.get().driver), "");
  EXPECT_EQ(text_of(read.get().torch_device), "cuda:0");
  EXPECT_NE(read.get().torch_device.data, info.torch_device.data);
  EXPECT_EQ(read.get().memory_bytes, 77u);
  ASSERT_EQ(read.get().rate_count, 1u);
  EXPECT_EQ(read.get().rates[0].flop_per_s, 3e9);
}

TEST(Wire, ADescriptionThatIsOlderHasNoLaterTexts) {
  bp_device_info info{};
  info.struct_size = offsetof(bp_device_info, torch_device);
  info.torch_device = {"beyond its end", 14};
  WireWriter out;
  put_info(out, info);
  WireReader in(out.bytes());
  WireInfo read(in);
  ASSERT_TRUE(in.ok());
  EXPECT_EQ(read.get().struct_size, info.struct_size);
  EXPECT_EQ(read.get().torch_device.size, 0u);
}

}  // namespace
}  // namespace backplane::runtime
