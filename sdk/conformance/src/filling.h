// What stands in the inputs of a case.
#pragma once

#include <cstdint>
#include <vector>

#include "sdk/conformance/src/corpus.h"
#include "sdk/conformance/src/graph_run.h"

namespace backplane::conformance {

enum class Filling : std::uint8_t {
  kNumbers,   // random ones of the recipe's range
  kIntegers,  // small whole ones: sums and products of them are exact
  kSpecial,   // some zeros of both signs, infinities, NaN, smallest and largest numbers among them
};

// Whether results are sums, so that rounding and overflow hang on an order that is nobody's
// promise.
bool adds_up(const ir::Graph& graph);

// Whether inputs of these recipes can be filled so and mean what they should.
bool can_fill(const CorpusGraph& graph, Filling filling);

// The memory of each input, in the strides of its type; between the elements stand NaNs.
std::vector<Bytes> fill(const ir::Graph& graph, const std::vector<Recipe>& recipes,
                        const Sizes& classes, Filling filling, std::uint64_t seed);

// The same elements in the types of another graph of the same inputs and strides.
std::vector<Bytes> converted(const ir::Graph& from, const ir::Graph& to, const Sizes& classes,
                             const std::vector<Bytes>& memory);

}  // namespace backplane::conformance
