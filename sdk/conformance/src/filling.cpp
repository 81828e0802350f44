#include "sdk/conformance/src/filling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/ir/view.h"
#include "sdk/conformance/src/elements.h"

namespace backplane::conformance {
namespace {

using ir::DType;

bool is_number_type(DType dtype) { return ir::is_float(dtype) || ir::is_complex(dtype); }

class Source {
 public:
  Source(const Recipe& recipe, DType dtype, Filling filling, bool sums, std::uint64_t seed)
      : recipe_(recipe), dtype_(dtype), filling_(filling), sums_(sums), generator_(seed) {}

  double next() {
    constexpr double kSteps = 1 << 24;
    const double part = static_cast<double>(generator_() % (1 << 24)) / kSteps;
    if (!is_number_type(dtype_))
      return std::floor(recipe_.low + part * (recipe_.high - recipe_.low + 1));
    if (filling_ == Filling::kIntegers) {
      const double low = std::max(std::ceil(recipe_.low), -3.0);
      const double high = std::min(std::floor(recipe_.high), std::max(3.0, low + 2));
      return std::floor(low + part * (high - low + 1));
    }
    // One NaN among its terms makes a sum NaN, and says nothing of the others.
    if (filling_ == Filling::kSpecial && generator_() % (sums_ ? 24 : 4) == 0) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      const FloatFormat format = float_format(dtype_);
      const double numbers[] = {0.0,
                                -0.0,
                                kInfinity,
                                -kInfinity,
                                std::numeric_limits<double>::quiet_NaN(),
                                1,
                                -1,
                                format.smallest,
                                -format.smallest,
                                format.largest,
                                -format.largest};
      // Sums of the largest numbers hang on their order.
      const std::size_t count = std::size(numbers) - (sums_ ? 4 : 0);
      return numbers[generator_() % count];
    }
    return recipe_.low + part * (recipe_.high - recipe_.low);
  }

 private:
  const Recipe& recipe_;
  DType dtype_;
  Filling filling_;
  bool sums_;
  std::mt19937_64 generator_;
};

}  // namespace

bool adds_up(const ir::Graph& graph) {
  return std::ranges::any_of(graph.nodes, [](const ir::Node& node) {
    using enum ir::OpClass;
    const ir::OpClass kind = node.op->op_class;
    return kind != kPointwise && kind != kView && kind != kMovement && kind != kFactory;
  });
}

bool can_fill(const CorpusGraph& graph, Filling filling) {
  if (filling == Filling::kNumbers) return true;
  bool any = false;
  for (const Recipe& recipe : graph.recipes) {
    if (!recipe.values.empty()) continue;
    any = true;
    // Where a range is one-sided, other numbers may mean nothing.
    if (filling == Filling::kIntegers && std::floor(recipe.high) - std::ceil(recipe.low) < 2)
      return false;
    if (filling == Filling::kSpecial && recipe.low >= 0) return false;
  }
  return any;
}

std::vector<Bytes> fill(const ir::Graph& graph, const std::vector<Recipe>& recipes,
                        const Sizes& classes, Filling filling, std::uint64_t seed) {
  std::vector<Bytes> out;
  const bool sums = adds_up(graph);
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const ir::TensorType& type = graph.values[graph.inputs[i]].type;
    Bytes& memory = out.emplace_back(memory_bytes(graph, graph.inputs[i], classes), 0xff);
    const Recipe& recipe = recipes[i];
    Source source(recipe, type.dtype, filling, sums, seed * 1000 + i);
    const std::int64_t bytes = ir::dtype_bytes(type.dtype);
    for_each_offset(ir::resolve(type.dims, classes), ir::resolve(type.strides, classes),
                    [&](std::int64_t n, std::int64_t offset) {
                      Number number;
                      if (!recipe.values.empty()) {
                        const auto place = static_cast<std::size_t>(n) % recipe.values.size();
                        number.real = static_cast<double>(recipe.values[place]);
                      } else {
                        number.real = source.next();
                        if (ir::is_complex(type.dtype)) number.imaginary = source.next();
                      }
                      write_number(type.dtype, memory.data() + offset * bytes, number);
                    });
  }
  return out;
}

std::vector<Bytes> converted(const ir::Graph& from, const ir::Graph& to, const Sizes& classes,
                             const std::vector<Bytes>& memory) {
  std::vector<Bytes> out;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const ir::TensorType& old_type = from.values[from.inputs[i]].type;
    const ir::TensorType& new_type = to.values[to.inputs[i]].type;
    if (old_type.dtype == new_type.dtype) {
      out.push_back(memory[i]);
      continue;
    }
    Bytes& target = out.emplace_back(memory_bytes(to, to.inputs[i], classes), 0xff);
    const std::int64_t old_bytes = ir::dtype_bytes(old_type.dtype);
    const std::int64_t new_bytes = ir::dtype_bytes(new_type.dtype);
    for_each_offset(ir::resolve(old_type.dims, classes), ir::resolve(old_type.strides, classes),
                    [&](std::int64_t, std::int64_t offset) {
                      write_number(
                          new_type.dtype, target.data() + offset * new_bytes,
                          read_number(old_type.dtype, memory[i].data() + offset * old_bytes));
                    });
  }
  return out;
}

}  // namespace backplane::conformance
