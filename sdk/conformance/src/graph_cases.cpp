// Graphs of the corpus, run on the plugin and compared with the oracle: as they are, and varied.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>

#include "core/ir/text.h"
#include "core/ir/verifier.h"
#include "core/ir/view.h"
#include "core/runtime/plugin/claims.h"
#include "sdk/conformance/src/elements.h"
#include "sdk/conformance/src/filling.h"
#include "sdk/conformance/src/kit.h"
#include "sdk/conformance/src/oracle.h"

namespace backplane::conformance {

using runtime::Device;

namespace {

enum class Variant : std::uint8_t {
  kPlain,
  kExact,      // small whole numbers: no rounding
  kSpecial,    // zeros, infinities, NaNs, smallest and largest numbers
  kBounds,     // under the host's memory check
  kLayouts,    // inputs and outputs in other strides
  kUnaligned,  // inputs at addresses that only their elements are aligned to
  kWeights,    // inputs behind the first are static: they may be packed
  kRepeat,     // other inputs give other results, equal ones the same bits
  kThreads,    // several calls at a time
  kSizes,      // dim classes at other values than the hints
};

class MemoryCheck {
 public:
  explicit MemoryCheck(bool on) : on_(on) {
    if (on_) ::setenv("BACKPLANE_CHECK", "memory", 1);
  }
  ~MemoryCheck() {
    if (on_) ::unsetenv("BACKPLANE_CHECK");
  }
  MemoryCheck(const MemoryCheck&) = delete;
  MemoryCheck& operator=(const MemoryCheck&) = delete;

 private:
  bool on_;
};

std::vector<bool> read_by_views(const ir::Graph& graph) {
  std::vector<bool> out(graph.values.size(), false);
  for (const ir::Node& node : graph.nodes)
    if (node.op->op_class == ir::OpClass::kView)
      for (const ir::ValueId operand : node.operands)
        if (operand != ir::kNone) out[operand] = true;
  return out;
}

// Strides of the same shape: of the transposed tensor, or with gaps between rows and elements.
std::vector<ir::Dim> other_strides(const std::vector<ir::Dim>& dims, std::size_t kind) {
  std::vector<ir::Dim> out(dims.size());
  std::int64_t next = kind % 3 == 2 ? 2 : 1;
  for (std::size_t k = 0; k < dims.size(); ++k) {
    const std::size_t d = kind % 3 == 0 ? k : dims.size() - 1 - k;
    out[d] = next;
    next = next * std::max<std::int64_t>(dims[d].number(), 1) + (kind % 3 == 1 ? 3 : 0);
  }
  return out;
}

// False where nothing could be changed.
bool change_layouts(ir::Graph& graph) {
  const std::vector<bool> viewed = read_by_views(graph);
  bool changed = false;
  const auto change = [&](ir::ValueId id, std::size_t kind) {
    ir::Value& value = graph.values[id];
    if (viewed[id] || value.type.rank() == 0 || value.kind == ir::ValueKind::kConstant ||
        std::ranges::any_of(value.type.dims, &ir::Dim::is_class))
      return;
    if (value.producer != ir::kNone &&
        graph.nodes[value.producer].op->op_class == ir::OpClass::kView)
      return;
    value.type.strides = other_strides(value.type.dims, kind);
    changed = true;
  };
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) change(graph.inputs[i], i);
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) change(graph.outputs[i], i + 1);
  return changed && ir::verify(graph).ok();
}

bool mark_weights(ir::Graph& graph) {
  for (std::size_t i = 1; i < graph.inputs.size(); ++i)
    graph.values[graph.inputs[i]].is_static = true;
  return graph.inputs.size() > 1;
}

class GraphCase {
 public:
  GraphCase(Kit& kit, const CorpusGraph& source, Variant variant, std::size_t step)
      : kit_(kit), source_(source), variant_(variant), step_(step) {}

  Outcome run() {
    Outcome out = run_inner();
    if (out.verdict == Verdict::kFail && out.graph.empty()) out.graph = ir::print(graph_);
    return out;
  }

 private:
  Outcome run_inner() {
    auto parsed = source_.graph();
    if (!parsed.ok()) return Outcome::mistrusted(parsed.status().message());
    graph_ = std::move(*parsed);
    if (variant_ == Variant::kLayouts && !change_layouts(graph_))
      return Outcome::unsupported("no layout of it can change");
    if (variant_ == Variant::kWeights && !mark_weights(graph_))
      return Outcome::unsupported("it has one input");
    auto classes = class_values(
        graph_, step_ != 0 ? source_.sizes[step_ - 1] : std::map<std::string, std::int64_t>());
    if (!classes.ok()) return Outcome::mistrusted(classes.status().message());
    classes_ = std::move(*classes);

    auto device = kit_.device();
    if (!device.ok()) return Outcome::fail(device.status().message());
    auto oracle = kit_.oracle();
    if (!oracle.ok()) return Outcome::mistrusted(oracle.status().message());
    device_ = *device, oracle_ = *oracle;

    if (const auto refused = check_claims()) return *refused;
    const Filling filling = variant_ == Variant::kExact     ? Filling::kIntegers
                            : variant_ == Variant::kSpecial ? Filling::kSpecial
                                                            : Filling::kNumbers;
    constexpr std::uint64_t kSeeds = 8;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      inputs_ = fill(graph_, source_.recipes, classes_, filling, seed);
      auto expected = expect(graph_, *oracle_, classes_, inputs_);
      if (!expected.ok()) return Outcome::mistrusted("the oracle: " + expected.status().message());
      expected_ = std::move(*expected);
      if (!has_elements(expected_) || says_something(graph_, expected_)) return compare();
    }
    return Outcome::mistrusted("every expected result is NaN");
  }

  // Nothing where the plugin takes a part of the graph.
  std::optional<Outcome> check_claims() {
    const runtime::GraphArrays arrays(graph_);
    const auto target = runtime::query_claims(*device_, graph_, arrays);
    if (!target.ok()) return Outcome::fail(target.status().message());
    for (const partition::Claim& claim : target->claims)
      for (const ir::NodeId node : claim.nodes)
        if (graph_.nodes[node].op->op_class != ir::OpClass::kView) claimed_.insert(node);
    for (const auto& refusal : target->refusals)
      if (claimed_.contains(refusal.node))
        return Outcome::fail("claims node " + std::to_string(refusal.node) + " (" +
                             std::string(graph_.nodes[refusal.node].op->name) +
                             ") and refuses it: " + refusal.text);
    if (!claimed_.empty()) return std::nullopt;
    std::string text = "claims no node";
    if (!target->refusals.empty()) text = target->refusals.front().text;
    return Outcome::unsupported(text);
  }

  // Claimed nodes that did not go to the plugin.
  std::optional<Outcome> check_delegated(const GraphRun& run, Outcome& out) const {
    std::set<ir::NodeId> taken;
    std::set<std::string_view> operators;
    for (const auto& partition : run.compiled().partitions())
      if (partition->device == device_->label())
        taken.insert(partition->nodes.begin(), partition->nodes.end());
    for (const ir::NodeId node : taken)
      if (run.compiled().graph().nodes[node].op->op_class != ir::OpClass::kView)
        operators.insert(run.compiled().graph().nodes[node].op->name);
    for (const std::string_view name : operators)
      out.operators += (out.operators.empty() ? "" : ",") + std::string(name);
    for (const runtime::RefusalReport& refusal : run.compiled().refusals())
      if (claimed_.contains(refusal.node) && refusal.text.starts_with("compile failed"))
        return Outcome::fail("claimed, then given back: " + refusal.text);
    if (operators.empty() && run.compiled().fallback_node_count() != 0)
      return Outcome{Verdict::kUndelegated, "claimed, and left to the host", 0, {}, {}};
    return std::nullopt;
  }

  std::vector<void*> addresses(std::vector<Bytes>& memory) {
    std::vector<void*> out;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      out.push_back(memory[i].data());
      if (variant_ != Variant::kUnaligned) continue;
      const auto element =
          static_cast<std::size_t>(ir::dtype_bytes(graph_.values[graph_.inputs[i]].type.dtype));
      constexpr std::size_t kAligned = 64;
      Bytes& moved = moved_.emplace_back(memory[i].size() + kAligned + element);
      const auto base = reinterpret_cast<std::uintptr_t>(moved.data());
      std::uint8_t* at = moved.data() + (kAligned - base % kAligned) % kAligned + element;
      std::memcpy(at, memory[i].data(), memory[i].size());
      out.back() = at;
    }
    return out;
  }

  std::vector<Bytes> outputs_of(const GraphRun::Results& results) const {
    std::vector<Bytes> out;
    for (std::size_t i = 0; i < graph_.outputs.size(); ++i) out.push_back(results.output(i));
    return out;
  }

  // Empty: right.
  std::string difference(const Expected& expected, const std::vector<Bytes>& actual,
                         Outcome& out) const {
    Strictness strictness;
    strictness.exact = variant_ == Variant::kExact;
    const Judgement judgement = judge(graph_, expected, actual, strictness);
    out.share_of_bound = std::max(out.share_of_bound, judgement.share_of_bound);
    return judgement.wrong;
  }
  static bool has_elements(const Expected& expected) {
    return std::ranges::any_of(expected.results, [](const Bytes& b) { return !b.empty(); });
  }

  Outcome compare() {
    const MemoryCheck check(variant_ == Variant::kBounds);
    std::vector<Bytes> before = inputs_;
    const std::vector<void*> at = addresses(inputs_);
    auto made = GraphRun::make(graph_, *device_, oracle_, classes_, at);
    if (!made.ok()) return Outcome::fail("compile: " + made.status().message());
    GraphRun& run = **made;
    Outcome out;
    if (const auto left = check_delegated(run, out)) return *left;
    if (variant_ == Variant::kThreads) return call_from_threads(run, std::move(out));
    GraphRun::Results results;
    const Status status = run.call(at, results);
    if (!status.ok()) return Outcome::fail("call: " + status.message());
    const std::vector<Bytes> actual = outputs_of(results);
    if (std::string wrong = difference(expected_, actual, out); !wrong.empty()) {
      Outcome failed = Outcome::fail(std::move(wrong));
      failed.share_of_bound = out.share_of_bound;
      failed.operators = out.operators;
      return failed;
    }
    if (before != inputs_) return Outcome::fail("an input was written");
    if (variant_ == Variant::kRepeat) return call_again(run, actual, std::move(out));
    return out;
  }

  // Other numbers in the same memory, then the first ones again.
  Outcome call_again(GraphRun& run, const std::vector<Bytes>& first, Outcome out) {
    const std::vector<Bytes> before = inputs_;
    std::vector<Bytes> other = fill(graph_, source_.recipes, classes_, Filling::kNumbers, 2);
    auto expected = expect(graph_, *oracle_, classes_, other);
    if (!expected.ok()) return Outcome::mistrusted("the oracle: " + expected.status().message());
    const std::vector<void*> at = addresses(inputs_);
    const auto call = [&](const std::vector<Bytes>& content) -> Result<std::vector<Bytes>> {
      for (std::size_t i = 0; i < content.size(); ++i)
        if (!content[i].empty()) std::memcpy(at[i], content[i].data(), content[i].size());
      GraphRun::Results results;
      BP_RETURN_IF_ERROR(run.call(at, results));
      return outputs_of(results);
    };
    const auto second = call(other);
    if (!second.ok()) return Outcome::fail("second call: " + second.status().message());
    if (std::string wrong = difference(*expected, *second, out); !wrong.empty())
      return Outcome::fail("second call, with other inputs: " + wrong);
    const auto third = call(before);
    if (!third.ok()) return Outcome::fail("third call: " + third.status().message());
    if (*third != first)
      return Outcome::fail("the third call, with the inputs of the first, gives other bits: " +
                           first_difference(first, *third));
    return out;
  }

  static std::string first_difference(const std::vector<Bytes>& a, const std::vector<Bytes>& b) {
    for (std::size_t i = 0; i < a.size(); ++i)
      for (std::size_t at = 0; at < a[i].size(); ++at)
        if (a[i][at] != b[i][at])
          return "output " + std::to_string(i) + " at byte " + std::to_string(at);
    return "nowhere";
  }

  Outcome call_from_threads(GraphRun& run, Outcome out) {
    constexpr std::size_t kThreads = 4, kCalls = 5;
    struct Mine {
      std::vector<Bytes> inputs;
      Expected expected;
      std::string wrong;
      Outcome outcome;
    };
    std::vector<Mine> all(kThreads);
    for (std::size_t t = 0; t < kThreads; ++t) {
      all[t].inputs = fill(graph_, source_.recipes, classes_, Filling::kNumbers, 10 + t);
      auto expected = expect(graph_, *oracle_, classes_, all[t].inputs);
      if (!expected.ok()) return Outcome::mistrusted("the oracle: " + expected.status().message());
      all[t].expected = std::move(*expected);
    }
    std::vector<std::thread> threads;
    for (Mine& mine : all)
      threads.emplace_back([&] {
        std::vector<void*> at;
        for (Bytes& input : mine.inputs) at.push_back(input.data());
        for (std::size_t call = 0; call < kCalls && mine.wrong.empty(); ++call) {
          GraphRun::Results results;
          const Status status = run.call(at, results);
          mine.wrong = status.ok() ? difference(mine.expected, outputs_of(results), mine.outcome)
                                   : status.message();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const Mine& mine : all)
      if (!mine.wrong.empty())
        return Outcome::fail("of four threads with inputs of their own: " + mine.wrong);
    return out;
  }

  Kit& kit_;
  const CorpusGraph& source_;
  Variant variant_;
  std::size_t step_;  // which of the sizes, from 1; 0: the hints
  ir::Graph graph_;
  Sizes classes_;
  Device *device_ = nullptr, *oracle_ = nullptr;
  std::set<ir::NodeId> claimed_;
  std::vector<Bytes> inputs_;
  std::deque<Bytes> moved_;
  Expected expected_;
};

class Adder {
 public:
  explicit Adder(std::vector<Case>& out) : out_(out) {}
  void add(const char* family, const CorpusGraph& graph, int level, Variant variant,
           std::size_t step = 0, const std::string& suffix = {}) {
    Case& one = out_.emplace_back();
    one.id = std::string(family) + ":" + graph.name + suffix;
    one.level = level;
    one.run = [&graph, variant, step](Kit& kit) {
      return GraphCase(kit, graph, variant, step).run();
    };
  }

 private:
  std::vector<Case>& out_;
};

std::string dtype_of(const CorpusGraph& graph) {
  const std::size_t end = graph.name.rfind('/');
  const std::size_t begin = graph.name.rfind('/', end - 1);
  return graph.name.substr(begin + 1, end - begin - 1);
}

// A padded convolution may multiply its zeros or leave them out, and of an infinity among others
// the variance may be found in several ways.
bool has_special_results(const CorpusGraph& graph) {
  return graph.text.find("conv") == std::string::npos &&
         graph.text.find("aten.var") == std::string::npos &&
         graph.text.find("aten.std") == std::string::npos &&
         graph.text.find("_norm") == std::string::npos &&
         graph.name.find("prod") == std::string::npos &&
         graph.name.find("masked.std") == std::string::npos &&
         graph.name.find("masked.var") == std::string::npos;
}

bool is_first(const CorpusGraph& graph) { return graph.name.ends_with("/0"); }

}  // namespace

void add_graph_cases(const Corpus& corpus, std::vector<Case>& out) {
  Adder adder(out);
  static const std::set<std::string> kBasic = {"f32", "i64"};
  for (const CorpusGraph& graph : corpus.operators)
    adder.add("operators", graph, is_first(graph) && kBasic.contains(dtype_of(graph)) ? 1 : 2,
              Variant::kPlain);
  for (const CorpusGraph& graph : corpus.operators)
    if (dtype_of(graph) == "f32" && (is_first(graph) || graph.name.ends_with("/1")))
      adder.add("bounds", graph, is_first(graph) ? 1 : 2, Variant::kBounds);
  for (const CorpusGraph& graph : corpus.operators) {
    const std::string dtype = dtype_of(graph);
    if (dtype == "f32" && can_fill(graph, Filling::kIntegers)) {
      const auto parsed = graph.graph();
      if (parsed.ok() && is_exact_on_integers(*parsed))
        adder.add("exact", graph, is_first(graph) ? 1 : 2, Variant::kExact);
    }
    if (!is_first(graph) || (dtype != "f32" && dtype != "bf16")) continue;
    adder.add("layouts", graph, 2, Variant::kLayouts);
    if (dtype != "f32") continue;
    adder.add("unaligned", graph, 2, Variant::kUnaligned);
    if (graph.recipes.size() > 1) adder.add("weights", graph, 2, Variant::kWeights);
    adder.add("repeat", graph, 2, Variant::kRepeat);
    if (can_fill(graph, Filling::kSpecial) && has_special_results(graph))
      adder.add("special", graph, 2, Variant::kSpecial);
  }
  std::size_t number = 0;
  for (const CorpusGraph& graph : corpus.operators)
    if (dtype_of(graph) == "f32" && is_first(graph) && number++ % 12 == 0)
      adder.add("threads", graph, number < 240 ? 1 : 2, Variant::kThreads);
  for (const CorpusGraph& graph : corpus.gradients) {
    adder.add("gradients", graph, 2, Variant::kPlain);
    if (dtype_of(graph) == "f32.gradient" && is_first(graph)) {
      adder.add("gradient-bounds", graph, 2, Variant::kBounds);
      adder.add("gradient-repeat", graph, 2, Variant::kRepeat);
    }
  }
  number = 0;
  for (const CorpusGraph& graph : corpus.random) {
    const int level = number++ < 200 ? 1 : 2;
    adder.add("random", graph, level, Variant::kPlain);
    if (level == 2) adder.add("random-bounds", graph, 2, Variant::kBounds);
    for (std::size_t step = 1; step <= graph.sizes.size(); ++step)
      adder.add("sizes", graph, level, Variant::kSizes, step, "+" + std::to_string(step));
  }
}

}  // namespace backplane::conformance
