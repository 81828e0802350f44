// Weights in tiles: there and back, who wants them, and products of them.
#include <gtest/gtest.h>
#include <backplane/sdk/host_kernels.hpp>
#include <backplane/sdk/mapped_kernels.hpp>
#include <backplane/sdk/queue.hpp>
#include <backplane/sdk/testing/host.hpp>
#include <backplane/sdk/testing/one_node.hpp>
#include <backplane/sdk/tiled_weights.hpp>

#include <array>
#include <random>

namespace backplane::sdk {
namespace {

using testing::Floats;
using testing::HostTensor;
using testing::OneNode;
using testing::Shape;

// The device's memory, and where the host has it.
constexpr std::uintptr_t kAway = std::uintptr_t{1} << 62;
std::byte* there(const void* host) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(host) ^ kAway);
}

bp_layout tiles(std::uint64_t name, bool transposed) {
  return {BP_LAYOUT_OPAQUE, 0, name * 2 + (transposed ? 1 : 0)};
}
LayoutConversion conversion(const TensorSpec& plain, bp_layout layout, bool unpacks) {
  TensorDesc strided{plain.dtype, plain.dims, plain.strides, {BP_LAYOUT_STRIDED, 0, 0}};
  TensorDesc packed{plain.dtype, plain.dims, row_major(plain.dims), layout};
  return unpacks ? LayoutConversion{packed, strided, {}, {}}
                 : LayoutConversion{strided, packed, {}, {}};
}

class TiledWeightsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { detail::g_host = &testing::host_api(); }

  std::int64_t any(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  std::mt19937 random_{1};  // NOLINT(bugprone-random-generator-seed): the same each time
};

// ---- There and back ----------------------------------------------------------------------------

TEST_F(TiledWeightsTest, EveryElementLiesInItsTileAndComesBack) {
  for (int n = 0; n < 500; ++n) {
    const std::int64_t interleave = any(1, 4);
    const TileFormat format{.name = 5,
                            .columns = any(1, 9),
                            .rows = interleave * any(1, 3),
                            .interleave = interleave,
                            .dtypes = {kFloat32, kFloat16, kBFloat16, kInt8, kFloat64}};
    const TiledWeights weights{format};
    const bp_dtype dtype = format.dtypes[static_cast<std::size_t>(any(0, 4))];
    const Shape dims{any(0, 20), any(0, 20)};
    Shape strides = any(0, 1) == 0 ? Shape{std::max<std::int64_t>(dims[1], 1), 1}
                                   : Shape{1, std::max<std::int64_t>(dims[0], 1)};
    const std::int64_t by = any(1, 3);  // with gaps
    for (std::int64_t& stride : strides) stride *= by;
    HostTensor plain(dtype, dims, strides), back(dtype, dims, strides);
    std::vector<int> values;
    for (int i = 0; i < 400; ++i) values.push_back(static_cast<int>(any(1, 100)));
    plain.set_values(values);

    const bool transposed = any(0, 1) == 1;
    const std::int64_t depth = dims[transposed ? 1 : 0], columns = dims[transposed ? 0 : 1];
    const LayoutConversion pack = conversion(plain.spec(), tiles(5, transposed), false);
    auto bytes = weights.bytes(pack.packed());
    ASSERT_TRUE(bytes.ok());
    std::vector<std::byte> packed(*bytes + 8, std::byte{0x5a});
    ASSERT_TRUE(weights.convert(pack, plain.data(), packed.data()).ok());

    // The same by the description alone.
    const std::int64_t size = element_bytes(dtype), height = format.rows, width = format.columns;
    std::vector<std::byte> expected;
    for (std::int64_t first = 0; first < columns; first += width)
      for (std::int64_t top = 0; top < (depth + height - 1) / height * height; top += interleave)
        for (std::int64_t c = first; c < first + width; ++c)
          for (std::int64_t k = top; k < top + interleave; ++k)
            for (std::int64_t b = 0; b < size; ++b) {
              const std::int64_t row = transposed ? c : k, column = transposed ? k : c;
              const std::int64_t at = (row * strides[0] + column * strides[1]) * size + b;
              expected.push_back(c < columns && k < depth ? plain.data()[at] : std::byte{0});
            }
    ASSERT_EQ(expected.size(), *bytes);
    expected.insert(expected.end(), 8, std::byte{0x5a});
    ASSERT_EQ(packed, expected);

    const LayoutConversion unpack = conversion(plain.spec(), tiles(5, transposed), true);
    ASSERT_TRUE(weights.convert(unpack, packed.data(), back.data()).ok());
    // HostTensor fills gaps and what is behind the tensor alike.
    ASSERT_TRUE(std::equal(plain.data(), plain.data() + plain.bytes() + HostTensor::kGuardBytes,
                           back.data()));
  }
}

TEST_F(TiledWeightsTest, NumbersOf8BitsHaveAScalePerColumn) {
  const TiledWeights weights{{.columns = 3, .code = symmetric_int8()}};
  for (const bool transposed : {false, true}) {
    HostTensor plain(kFloat32, transposed ? Shape{4, 5} : Shape{5, 4});
    const std::size_t by_row = transposed ? 1 : 4, by_column = transposed ? 5 : 1;
    Floats values(20);
    for (std::size_t k = 0; k < 5; ++k) {
      values[k * by_row] = 0.25F * static_cast<float>(k) - 0.5F;
      values[k * by_row + by_column] = 0;
      values[k * by_row + 2 * by_column] = k == 1 ? -INFINITY : 1;
      values[k * by_row + 3 * by_column] = k == 1 ? 127000 : 1;
    }
    plain.set_values(values);
    const LayoutConversion pack = conversion(plain.spec(), tiles(1, transposed), false);
    // Two panels of 15 numbers, one byte for the scales' alignment, three scales.
    ASSERT_EQ(*weights.bytes(pack.packed()), 2U * 28);
    std::vector<std::byte> packed(56);
    ASSERT_TRUE(weights.convert(pack, plain.data(), packed.data()).ok());
    EXPECT_EQ(static_cast<std::int8_t>(packed[0]), -127);
    EXPECT_EQ(static_cast<std::int8_t>(packed[4 * 3]), 127);
    float scale = 0;
    std::memcpy(&scale, packed.data() + 16, sizeof scale);
    EXPECT_FLOAT_EQ(scale, 0.5F / 127);

    HostTensor back(plain.spec());
    const LayoutConversion unpack = conversion(plain.spec(), tiles(1, transposed), true);
    ASSERT_TRUE(weights.convert(unpack, packed.data(), back.data()).ok());
    const Floats got = back.values();
    for (std::size_t k = 0; k < 5; ++k) {
      EXPECT_NEAR(got[k * by_row], values[k * by_row], 0.5F / 254);
      EXPECT_EQ(got[k * by_row + by_column], 0);
      EXPECT_TRUE(std::isnan(got[k * by_row + 2 * by_column]));
      EXPECT_NEAR(got[k * by_row + 3 * by_column], values[k * by_row + 3 * by_column], 501);
    }
  }
}

TEST_F(TiledWeightsTest, WhatIsNoLayoutOfTheDeviceIsRefused) {
  const TiledWeights weights{{.name = 2}, {.name = 3, .code = symmetric_int8()}};
  const auto code = [&](bp_dtype dtype, const Shape& dims, bp_layout layout) -> bp_code {
    auto bytes = weights.bytes({dtype, dims, row_major(dims), layout});
    return bytes.ok() ? bp_code{BP_OK} : bytes.status().code();
  };
  EXPECT_EQ(code(kFloat32, {3, 4}, tiles(2, true)), BP_OK);
  EXPECT_EQ(code(kFloat32, {3, 4}, tiles(3, false)), BP_OK);
  EXPECT_EQ(code(kFloat32, {3, 4}, tiles(4, false)), BP_DATA_CORRUPT);
  EXPECT_EQ(code(kFloat32, {3, 4}, {BP_LAYOUT_STRIDED, 0, 4}), BP_DATA_CORRUPT);
  EXPECT_EQ(code(kFloat32, {3, 4, 5}, tiles(2, true)), BP_DATA_CORRUPT);
  EXPECT_EQ(code(kFloat32, {-3, 4}, tiles(2, true)), BP_DATA_CORRUPT);
  EXPECT_EQ(code(kFloat32, {INT64_MAX / 2, INT64_MAX / 2}, tiles(2, true)), BP_DATA_CORRUPT);
  EXPECT_EQ(code(kFloat16, {3, 4}, tiles(2, true)), BP_DATA_CORRUPT);

  LayoutConversion both = conversion({kFloat32, {3, 4}, {4, 1}}, tiles(2, true), false);
  both.source_desc.layout = tiles(3, true);
  EXPECT_EQ(weights.convert(both, nullptr, nullptr).code(), BP_UNSUPPORTED);
}

// ---- Who wants them ----------------------------------------------------------------------------

std::vector<bp_layout> chosen(const TiledWeights& weights, const bp_graph& graph) {
  std::vector<bp_io_request> requests(graph.input_count + graph.output_count);
  for (auto& request : requests) request.layout.kind = BP_LAYOUT_ANY;
  auto args = make<bp_compile_args>();
  args.graph = &graph;
  args.inputs = requests.data();
  args.outputs = requests.data() + graph.input_count;
  args.io_stride = sizeof(bp_io_request);
  return weights.choose(GraphView(graph), CompileOptions(args), 1);
}

// A graph of x[2, 4], a weight [4, 4] and a bias [4]; `fill` adds nodes.
class Wanted : public TiledWeightsTest {
 protected:
  testing::GraphBuilder g_;
  const std::uint32_t x_ = g_.input(kFloat32, {2, 4});
  const std::uint32_t weight_ = g_.input(kFloat32, {4, 4}, {}, BP_VALUE_STATIC);
  const std::uint32_t bias_ = g_.input(kFloat32, {4}, {}, BP_VALUE_STATIC);

  std::uint32_t node(const std::string& op, const std::vector<std::uint32_t>& operands) {
    const auto y = g_.value(kFloat32, {2, 4});
    g_.node(op, operands, {y});
    g_.output(y);
    return y;
  }
  std::uint32_t turned() {
    const auto t = g_.value(kFloat32, {4, 4}, {1, 4});
    g_.view("aten.t", weight_, t);
    return t;
  }
  // 0: as it is
  std::uint64_t layout() const {
    const bp_graph graph = g_.graph();
    const auto layouts = chosen(TiledWeights{{}}, graph);
    EXPECT_EQ(layouts[0].kind, bp_layout_kind{BP_LAYOUT_STRIDED});
    EXPECT_EQ(layouts[2].kind, bp_layout_kind{BP_LAYOUT_STRIDED});
    return layouts[1].kind == BP_LAYOUT_OPAQUE ? layouts[1].layout_id : 0;
  }
};

TEST_F(Wanted, ByProducts) {
  node("aten.mm", {x_, weight_});
  EXPECT_EQ(layout(), 2U);
  node("aten.addmm", {bias_, x_, weight_});
  EXPECT_EQ(layout(), 2U);  // both
  node("aten.linear", {x_, turned(), bias_});
  EXPECT_EQ(layout(), 2U);
  node("aten.linear", {x_, weight_});  // reads it the other way round
  EXPECT_EQ(layout(), 0U);
}
TEST_F(Wanted, ByLinearAndProductsOfItsTranspose) {
  node("aten.linear", {x_, weight_, bias_});
  EXPECT_EQ(layout(), 3U);
  node("aten.mm", {x_, turned()});
  EXPECT_EQ(layout(), 3U);
}
TEST_F(Wanted, NotWhereSomebodyElseReadsIt) {
  node("aten.mm", {x_, weight_});
  node("aten.mm", {weight_, weight_});
  EXPECT_EQ(layout(), 0U);
}
TEST_F(Wanted, NotWhereItIsAnOutput) {
  node("aten.mm", {x_, weight_});
  g_.output(weight_);
  EXPECT_EQ(layout(), 0U);
}
TEST_F(Wanted, NotByASumThatIsScaled) {
  g_.real("alpha", 2);
  node("aten.addmm", {bias_, x_, weight_});
  EXPECT_EQ(layout(), 0U);
}
TEST_F(Wanted, NotByASumWhoseBiasIsScaled) {
  g_.integer("beta", 0);
  node("aten.addmm", {bias_, x_, weight_});
  EXPECT_EQ(layout(), 0U);
}
TEST_F(Wanted, NotByASumOfMatrices) {
  node("aten.addmm", {x_, x_, weight_});
  EXPECT_EQ(layout(), 0U);
}
TEST_F(Wanted, NotWhereANumberFollowsFromSizes) {
  g_.dim_class(2, 9, 3);
  g_.attribute("alpha", BP_ATTRIBUTE_INT).integer = -1;
  g_.attribute("beta", BP_ATTRIBUTE_INT).integer = 1;
  node("aten.addmm", {bias_, x_, weight_});
  bp_graph graph = g_.graph();
  const_cast<bp_attribute*>(graph.attributes)->is_class = 1;
  EXPECT_EQ(chosen(TiledWeights{{}}, graph)[1].kind, bp_layout_kind{BP_LAYOUT_STRIDED});
}
TEST_F(Wanted, NotOfAnotherElementType) {
  node("aten.mm", {x_, weight_});
  const bp_graph graph = g_.graph();
  EXPECT_EQ(chosen(TiledWeights{{.dtypes = {kFloat16}}}, graph)[1].kind,
            bp_layout_kind{BP_LAYOUT_STRIDED});
}

// ---- Products ----------------------------------------------------------------------------------

// By the format's own words.
Status multiply(const TiledProduct& p) {
  for (std::int64_t r = 0; r < p.rows; ++r)
    for (std::int64_t c = 0; c < p.columns; ++c) {
      const TileFormat& f = p.format;
      const auto* const panel = reinterpret_cast<const float*>(p.panel(c / f.columns));
      float sum = p.bias == nullptr ? 0 : static_cast<const float*>(p.bias)[c];
      for (std::int64_t k = 0; k < p.depth; ++k)
        sum += static_cast<const float*>(p.left)[r * p.depth + k] *
               panel[f.position(k, c % f.columns)];
      static_cast<float*>(p.result)[r * p.columns + c] = sum;
    }
  return {};
}

// What a graph makes of inputs in memory, with weights packed where they are wanted; `map`: with
// addresses that are not the host's.
struct Products {
  TiledWeights weights{{.columns = 3, .rows = 4, .interleave = 2}};
  int multiplied = 0;
  bool mapped_memory = false;

  KernelTable table(bool dense) {
    auto plain = host_kernels::rows();
    for (KernelRow& row : plain) row.dense = row.dense && dense;
    if (!mapped_memory) return table_of(plain, multiply);
    const HostAddress map = [](std::byte* address) { return there(address); };
    return table_of(
        mapped(plain, map),
        [](TiledProduct p) {
          for (const void** at : {&p.left, &p.tiles, &p.bias})
            if (*at != nullptr) *at = there(*at);
          p.result = there(p.result);
          return multiply(p);
        },
        mapped(strided_copy, map));
  }
  KernelTable table_of(std::vector<KernelRow> plain, const MultiplyTiles& product,
                       KernelFactory copies = {}) {
    return KernelTable(weights.rows(std::move(plain),
                                    [this, product](const TiledProduct& p) {
                                      ++multiplied;
                                      return product(p);
                                    }),
                       std::move(copies));
  }

  Floats run(const bp_graph& graph, std::vector<HostTensor> inputs,
             const std::vector<std::int64_t>& dims = {}, bool dense = true) {
    const KernelTable own = table(dense);
    const GraphView view(graph);
    const auto layouts = chosen(weights, graph);
    const auto program = own.compile(view, layouts);
    auto instance = program->instance(dims);
    EXPECT_TRUE(instance.ok()) << instance.status().message();
    if (!instance.ok()) return {};
    std::vector<std::vector<std::byte>> packed(inputs.size());
    std::vector<std::byte*> in;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      in.push_back(inputs[i].data());
      if (layouts[i].kind != BP_LAYOUT_OPAQUE) continue;
      const LayoutConversion pack = conversion(inputs[i].spec(), layouts[i], false);
      packed[i].resize(*weights.bytes(pack.packed()));
      EXPECT_TRUE(weights.convert(pack, inputs[i].data(), packed[i].data()).ok());
      in.back() = packed[i].data();
    }
    const ValueView out = view.value(view.outputs()[0]);
    const Dims sizes(dims);
    HostTensor result(out.dtype(), sizes(out.dims()), sizes(out.strides()));
    std::vector<std::byte*> results{result.data()};
    std::vector<std::byte> workspace((*instance)->workspace_bytes() + 64);
    auto* scratch = workspace.data() + 64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64;
    if (mapped_memory) {
      for (auto* all : {&in, &results})
        for (std::byte*& address : *all) address = there(address);
      scratch = there(scratch);
    }
    const Status status = (*instance)->run(in, results, scratch);
    EXPECT_TRUE(status.ok()) << status.message();
    return result.values();
  }
};

class Product : public TiledWeightsTest {
 protected:
  HostTensor tensor(const Shape& dims, const Shape& strides = {}) {
    HostTensor out(kFloat32, dims, strides);
    Floats values;  // whose sums are exact
    for (int i = 0; i < 64; ++i) values.push_back(static_cast<float>(any(-4, 4)));
    out.set_values(values);
    return out;
  }
  // With packed weights and as the SDK's plain kernels have it.
  void compare(const bp_graph& graph, const std::vector<HostTensor>& inputs, int products,
               const std::vector<std::int64_t>& dims = {}) {
    Products plain;
    plain.weights = TiledWeights{};
    const Floats expected = plain.run(graph, inputs, dims);
    EXPECT_EQ(plain.multiplied, 0);
    for (const bool away : {false, true})
      for (const bool dense : {true, false}) {
        if (!dense && products == 0) continue;  // the plain kernels are none that take strides
        Products packed;
        packed.mapped_memory = away;
        EXPECT_EQ(packed.run(graph, inputs, dims, dense), expected);
        EXPECT_EQ(packed.multiplied, products);
      }
  }
};

TEST_F(Product, OfLinear) {
  for (const Shape& left : {Shape{5}, Shape{2, 5}, Shape{0, 5}, Shape{2, 3, 5}})
    for (const bool biased : {false, true})
      for (const std::int64_t columns : {1, 3, 7}) {
        testing::GraphBuilder g;
        std::vector<std::uint32_t> operands{g.input(kFloat32, left),
                                            g.input(kFloat32, {columns, 5}, {}, BP_VALUE_STATIC)};
        std::vector<HostTensor> inputs{tensor(left), tensor({columns, 5})};
        if (biased) {
          operands.push_back(g.input(kFloat32, {columns}));
          inputs.push_back(tensor({columns}));
        }
        Shape result = left;
        result.back() = columns;
        const auto y = g.value(kFloat32, result);
        g.node("aten.linear", operands, {y});
        g.output(y);
        compare(g.graph(), inputs, left[0] == 0 ? 0 : 1);
      }
}
TEST_F(Product, OfTurnedWeights) {
  for (const char* const op : {"aten.mm", "aten.linear"}) {
    testing::GraphBuilder g;
    const bool linear = op == std::string_view("aten.linear");
    const Shape as_read = linear ? Shape{7, 5} : Shape{5, 7}, stored{as_read[1], as_read[0]};
    const auto x = g.input(kFloat32, {2, 5}), w = g.input(kFloat32, stored, {}, BP_VALUE_STATIC);
    const auto t = g.value(kFloat32, as_read, {1, as_read[0]}), y = g.value(kFloat32, {2, 7});
    g.view("aten.t", w, t);
    g.node(op, {x, t}, {y});
    g.output(y);
    compare(g.graph(), {tensor({2, 5}), tensor(stored)}, 1);
  }
}
TEST_F(Product, OfATurnedLeftOperandToATurnedResult) {
  testing::GraphBuilder g;
  const auto x = g.input(kFloat32, {2, 5}, {1, 2}),
             w = g.input(kFloat32, {5, 7}, {1, 5}, BP_VALUE_STATIC);
  const auto y = g.value(kFloat32, {2, 7}, {1, 2});
  g.node("aten.mm", {x, w}, {y});
  g.output(y);
  compare(g.graph(), {tensor({2, 5}, {1, 2}), tensor({5, 7}, {1, 5})}, 1);
}
TEST_F(Product, OfAnySizes) {
  testing::GraphBuilder g;
  g.dim_class(0, 9, 3);
  const auto x = g.input(kFloat32, {-1, 5}), w = g.input(kFloat32, {5, 7}, {}, BP_VALUE_STATIC);
  const auto y = g.value(kFloat32, {-1, 7}, {7, 1});
  g.node("aten.mm", {x, w}, {y});
  g.output(y);
  for (const std::int64_t rows : {4, 1, 0})
    compare(g.graph(), {tensor({rows, 5}), tensor({5, 7})}, rows == 0 ? 0 : 1, {rows});
}
TEST_F(Product, OfSums) {
  struct Case {
    Shape bias;
    double alpha, beta;
    bool packed;
  };
  for (const Case& one :
       {Case{{7}, 1, 1, true}, Case{{7}, 2, 1, false}, Case{{7}, 1, 0.5, false},
        Case{{1}, 1, 1, false}, Case{{2, 7}, 1, 1, false}, Case{{}, 1, 1, false}}) {
    testing::GraphBuilder g;
    const auto b = g.input(kFloat32, one.bias), x = g.input(kFloat32, {2, 5}),
               w = g.input(kFloat32, {5, 7}, {}, BP_VALUE_STATIC);
    const auto y = g.value(kFloat32, {2, 7});
    g.real("alpha", one.alpha);
    g.real("beta", one.beta);
    g.node("aten.addmm", {b, x, w}, {y});
    g.output(y);
    compare(g.graph(), {tensor(one.bias), tensor({2, 5}), tensor({5, 7})}, one.packed ? 1 : 0);
  }
}

// ---- A device's memory that the host cannot reach ----------------------------------------------

class Away final : public Device {
 public:
  DeviceInfo info() const override { return {}; }
  Result<Buffer> allocate(std::size_t bytes) override {
    auto inner = host_buffer(bytes);
    if (!inner.ok()) return inner.status();
    auto memory = std::make_shared<Buffer>(std::move(*inner));
    std::byte* const at = there(memory->data());
    return Buffer(at, bytes, [memory](void*) {});
  }
  Status copy(const Copy& copy, const Order& order) override {
    return queues_.submit(order, true, [copy]() -> Status {
      const auto at = [](const Range& range) {
        return range.buffer() == nullptr ? range.data() : there(range.data());
      };
      if (copy.bytes() != 0) std::memcpy(at(copy.target), at(copy.source), copy.bytes());
      return {};
    });
  }
  Claims claims(const GraphView&) override { return {}; }
  Result<std::unique_ptr<Executable>> compile(const Subgraph&, const CompileOptions&) override {
    return Status(BP_UNSUPPORTED, "no programs");
  }
  std::unique_ptr<Stream> stream() { return queues_.create_stream(); }
  std::unique_ptr<Event> event() { return queues_.create_event(); }

 private:
  Queues queues_;
};

Range range_of(const Buffer& buffer, std::size_t bytes) {
  return Range({reinterpret_cast<bp_buffer*>(const_cast<Buffer*>(&buffer)), nullptr, 0, bytes});
}

TEST_F(TiledWeightsTest, CopiesBringAWeightToWhereItIsConverted) {
  Away device;
  const TiledWeights weights{{.columns = 2}};
  for (const bool streamed : {false, true}) {
    const auto stream = device.stream();
    const auto event = device.event();
    bp_order raw{};
    if (streamed) raw.stream = reinterpret_cast<bp_stream*>(stream.get());
    if (streamed) raw.signal = reinterpret_cast<bp_event*>(event.get());
    const Order order(raw);

    Floats plain{1, 2, 3, -1, 4, 5, 6};  // [2, 3] with a gap between the rows
    const TensorSpec spec{kFloat32, {2, 3}, {4, 1}};
    LayoutConversion pack = conversion(spec, tiles(1, false), false);
    const std::size_t bytes = *weights.bytes(pack.packed());
    auto from = device.allocate(28), to = device.allocate(bytes), back = device.allocate(28);
    const Range host(bp_range{nullptr, plain.data(), 0, 28});
    ASSERT_TRUE(device.copy({host, range_of(*from, 28)}, {}).ok());
    pack.source = range_of(*from, 28);
    pack.target = range_of(*to, bytes);
    ASSERT_TRUE(weights.convert_by_copies(device, pack, order).ok());
    Floats packed(bytes / 4);
    ASSERT_TRUE(
        device.copy({pack.target, Range(bp_range{nullptr, packed.data(), 0, bytes})}, {}).ok());
    EXPECT_EQ(packed, (Floats{1, 2, 4, 5, 3, 0, 6, 0}));
    bool done = false;
    EXPECT_TRUE(event->query(done).ok());
    EXPECT_TRUE(done);

    Floats before{9, 9, 9, 9, 9, 9, 9}, after(7);
    LayoutConversion unpack = conversion(spec, tiles(1, false), true);
    unpack.source = pack.target;
    unpack.target = range_of(*back, 28);
    ASSERT_TRUE(
        device.copy({Range(bp_range{nullptr, before.data(), 0, 28}), unpack.target}, {}).ok());
    ASSERT_TRUE(weights.convert_by_copies(device, unpack, order).ok());
    ASSERT_TRUE(
        device.copy({unpack.target, Range(bp_range{nullptr, after.data(), 0, 28})}, {}).ok());
    EXPECT_EQ(after, (Floats{1, 2, 3, 9, 4, 5, 6}));
  }
}

// A signal also comes where there is nothing to copy.
TEST_F(TiledWeightsTest, AWeightWithoutElementsIsConverted) {
  Away device;
  const TiledWeights weights{{}};
  const auto event = device.event();
  bp_order raw{};
  raw.signal = reinterpret_cast<bp_event*>(event.get());
  const LayoutConversion pack = conversion({kFloat32, {0, 3}, {3, 1}}, tiles(1, false), false);
  EXPECT_EQ(*weights.bytes(pack.packed()), 0U);
  EXPECT_TRUE(weights.convert_by_copies(device, pack, Order(raw)).ok());
  EXPECT_TRUE(event->wait(UINT64_MAX).ok());
}

}  // namespace
}  // namespace backplane::sdk
