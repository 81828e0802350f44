// Versions and sizes: hosts that are older, newer, or larger than the plugin's headers know.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "core/runtime/plugin/plugin_table.h"
#include "sdk/conformance/src/raw.h"

namespace backplane::conformance {
namespace {

using testing::Outcome;
namespace rt = runtime;
using Verdict = conformance::Verdict;
using CaseOutcome = conformance::Outcome;

struct Asked {
  std::uint32_t host_min = BP_ABI_VERSION, host_max = BP_ABI_VERSION;
  std::uint32_t magic = BP_NEGOTIATE_MAGIC;
  std::size_t more_bytes = 0;  // behind the host's table, all ones
};

// A host's table with bytes behind it that the plugin does not know.
const bp_host_api* larger_host(std::size_t more, std::uint32_t version) {
  auto* const bytes = new std::vector<std::uint8_t>(sizeof(bp_host_api) + more, 0xff);
  bp_host_api api = testing::host_api();
  api.struct_size = bytes->size();
  api.version = version;
  std::memcpy(bytes->data(), &api, sizeof api);
  return reinterpret_cast<const bp_host_api*>(bytes->data());
}

bp_negotiation ask(Kit& kit, const Asked& asked) {
  bp_negotiation out{};
  out.magic = asked.magic;
  out.host_min = asked.host_min;
  out.host_max = asked.host_max;
  out.host = larger_host(asked.more_bytes, asked.host_max);
  testing::load_plugin(kit.files().plugin)(&out);
  return out;
}

bool is_ours(std::uint32_t min, std::uint32_t max) {
  return min <= BP_ABI_VERSION && BP_ABI_VERSION <= max;
}

std::string check_answer(const Asked& asked, const bp_negotiation& answer) {
  const bool fits = asked.magic == BP_NEGOTIATE_MAGIC && asked.host_min <= asked.host_max &&
                    is_ours(asked.host_min, asked.host_max);
  if (std::memchr(answer.message, 0, sizeof answer.message) == nullptr)
    return "its message has no end";
  if (fits) {
    if (answer.result != BP_NEGOTIATE_OK)
      return "it refuses a range that holds its version: " + std::string(answer.message);
    if (answer.chosen != std::min(asked.host_max, answer.plugin_max))
      return "it chose " + rt::version_text(answer.chosen) +
             ", expected the smaller of both highest";
    if (answer.api == nullptr) return "it gives no table";
    return {};
  }
  if (answer.result == BP_NEGOTIATE_OK && is_ours(answer.plugin_min, answer.plugin_max) &&
      (answer.plugin_max < asked.host_min || answer.plugin_min > asked.host_max ||
       asked.magic != BP_NEGOTIATE_MAGIC || asked.host_min > asked.host_max))
    return "it accepts a range that does not hold its version";
  if (answer.result != BP_NEGOTIATE_OK && answer.api != nullptr)
    return "it refuses and gives a table";
  if (answer.result == BP_NEGOTIATE_VERSION && answer.plugin_max == 0)
    return "it refuses for its version and does not say which it has";
  return {};
}

// One struct that the host passes, with its size changed.
enum class Size : std::uint8_t { kZero, kSmall, kHuge, kLarger };
constexpr struct {
  Size size;
  const char* name;
} kSizes[] = {{Size::kZero, "zero"},
              {Size::kSmall, "too-small"},
              {Size::kHuge, "huge"},
              {Size::kLarger, "larger"}};

// `T` with other bytes behind it, and the size that it says.
template <class T>
class Sized {
 public:
  Sized(const T& value, Size size) : memory_(sizeof(T) + 64, 0xee) {
    std::memcpy(memory_.data(), &value, sizeof value);
    get()->struct_size = size == Size::kZero    ? 0
                         : size == Size::kSmall ? sizeof(std::size_t)
                         : size == Size::kHuge  ? std::size_t{BP_STRUCT_SIZE_LIMIT} + 8
                                                : sizeof(T) + 64;
  }
  T* get() { return reinterpret_cast<T*>(memory_.data()); }
  // An output of the callee's size or less leaves what is behind it.
  bool is_untouched_behind() const {
    return std::all_of(memory_.begin() + sizeof(T), memory_.end(),
                       [](std::uint8_t b) { return b == 0xee; });
  }

 private:
  std::vector<std::uint8_t> memory_;
};

CaseOutcome check_size(Size size, bp_error* error) {
  const Outcome outcome = Outcome::take(error);
  if (size == Size::kLarger) {
    if (outcome.ok()) return {};
    return CaseOutcome::fail("a struct that is larger than it knows is refused: " +
                             outcome.message);
  }
  if (outcome.code == BP_INVALID_ARGUMENT) return {};
  return CaseOutcome::fail(
      "an impossible struct_size gives " +
      (outcome.ok() ? std::string("success") : "code " + std::to_string(outcome.code)) +
      ", expected INVALID_ARGUMENT");
}

using SizeCase = CaseOutcome (*)(RawProblem& problem, testing::Session& s, Size size);

const struct {
  const char* name;
  SizeCase run;
  bool compiles = false;  // wants a graph that the plugin takes
} kStructs[] = {
    {"device_info",
     [](RawProblem&, testing::Session& s, Size size) {
       Sized<bp_device_info> info({}, size);
       CaseOutcome out = check_size(size, s.api().device_describe(s.plugin(), 0, info.get()));
       if (!info.is_untouched_behind() && info.get()->struct_size <= sizeof(bp_device_info))
         return CaseOutcome::fail("it writes behind the struct it knows");
       return out;
     }},
    {"device_counters",
     [](RawProblem&, testing::Session& s, Size size) {
       if (s.api().device_counters == nullptr) return CaseOutcome::unsupported("no counters");
       Sized<bp_device_counters> counters({}, size);
       return check_size(size, s.api().device_counters(s.device(), counters.get()));
     }},
    {"graph",
     [](RawProblem& problem, testing::Session& s, Size size) {
       Sized<bp_graph> graph(problem.arrays->get(), size);
       testing::ClaimAnswer answer;
       return check_size(size, s.api().claims(s.plugin(), &s.info(), graph.get(),
                                              reinterpret_cast<bp_claim_sink*>(&answer)));
     }},
    {"compile_args",
     [](RawProblem& problem, testing::Session& s, Size size) {
       std::vector<bp_io_request> requests;
       Sized<bp_compile_args> args(compile_args(s, problem.arrays->get(), requests), size);
       bp_executable* executable = nullptr;
       CaseOutcome out = check_size(size, s.api().compile(s.plugin(), args.get(), &executable));
       s.api().executable_release(executable);
       return out;
     },
     true},
    {"executable_info",
     [](RawProblem& problem, testing::Session& s, Size size) {
       bp_executable* const executable = s.compile(problem.arrays->get());
       Sized<bp_executable_info> info({}, size);
       return check_size(size, s.api().executable_describe(executable, info.get()));
     },
     true},
    {"copy_args",
     [](RawProblem&, testing::Session& s, Size size) {
       std::uint8_t bytes[64] = {};
       auto args = sdk::make<bp_copy_args>();
       args.source = testing::Session::host_range(bytes, sizeof bytes);
       args.target = testing::Session::range(s.buffer(sizeof bytes), sizeof bytes);
       Sized<bp_copy_args> sized(args, size);
       return check_size(size, s.api().copy(s.device(), sized.get()));
     }},
    {"execute_args",
     [](RawProblem& problem, testing::Session& s, Size size) {
       bp_executable* const executable = s.compile(problem.arrays->get());
       const BoundCall call = bound_call(s, executable, bind(s, problem));
       Sized<bp_execute_args> sized(call.args, size);
       return check_size(size, s.api().execute(executable, sized.get()));
     },
     true},
    {"tensor_desc",
     [](RawProblem&, testing::Session& s, Size size) {
       if (s.api().layout_bytes == nullptr) return CaseOutcome::unsupported("no layouts");
       const std::int64_t dims[] = {4, 4};
       auto desc = sdk::make<bp_tensor_desc>();
       desc.dtype = runtime::to_bp_dtype(ir::DType::kFloat32);
       desc.rank = 2;
       desc.dims = dims;
       desc.layout.kind = BP_LAYOUT_STRIDED;
       Sized<bp_tensor_desc> sized(desc, size);
       std::uint64_t bytes = 0;
       bp_error* const error = s.api().layout_bytes(s.plugin(), &s.info(), sized.get(), &bytes);
       if (size != Size::kLarger) return check_size(size, error);
       // A plain layout may be none of the plugin's: then the answer is as for the size that it
       // knows.
       const Outcome larger = Outcome::take(error),
                     known =
                         Outcome::take(s.api().layout_bytes(s.plugin(), &s.info(), &desc, &bytes));
       return larger.code == known.code ? CaseOutcome{} : CaseOutcome::fail(larger.message);
     }},
};

// The arrays of a graph with a larger stride, and other bytes behind each element.
template <class T>
const T* spread(const T* elements, std::size_t count, std::size_t stride) {
  auto* const memory = new std::vector<std::uint8_t>(count * stride + 64, 0xdd);
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(memory->data() + i * stride, elements + i, sizeof(T));
  return reinterpret_cast<const T*>(memory->data());
}

CaseOutcome run_with_strides(RawProblem& problem, testing::Session& s, std::size_t more) {
  bp_graph graph = problem.arrays->get();
  const auto widen = [&]<class T>(const T*& elements, std::size_t count, std::size_t& stride) {
    const std::size_t wide = sizeof(T) + more;
    elements = spread(elements, count, wide);
    stride = wide;
  };
  widen(graph.nodes, graph.node_count, graph.node_stride);
  widen(graph.values, graph.value_count, graph.value_stride);
  widen(graph.attributes, graph.attribute_count, graph.attribute_stride);
  widen(graph.ops, graph.op_count, graph.op_stride);
  widen(graph.dim_classes, graph.dim_class_count, graph.dim_class_stride);
  return CaseOutcome::of(problem.difference(s.run(graph, problem.inputs, {problem.classes})));
}

std::string check_table(Kit& kit) {
  const bp_negotiation answer = ask(kit, {});
  void* const library = ::dlopen(kit.files().plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto table = rt::check_table(answer.api, rt::LibraryMap::of(library), answer.chosen);
  return table.ok() ? std::string() : table.status().message();
}

}  // namespace

void add_negotiation_cases(const Corpus& corpus, std::vector<Case>& out) {
  const auto add = [&](const std::string& name, int level, Door door,
                       std::function<CaseOutcome(Kit&)> run) {
    add_guarded(out, "negotiation:" + name, level, door, std::move(run));
  };
  constexpr std::uint32_t kMinor = BP_VERSION_MINOR(BP_ABI_VERSION);
  const std::pair<const char*, Asked> asked[] = {
      {"same", {}},
      {"host-newer-minor", {BP_ABI_VERSION, BP_VERSION(0, kMinor + 5)}},
      {"host-older-too", {BP_VERSION(0, 0), BP_ABI_VERSION}},
      {"host-any-minor", {BP_VERSION(0, 0), BP_VERSION(0, 0xffff)}},
      {"host-too-new", {BP_VERSION(0, kMinor + 1), BP_VERSION(0, kMinor + 3)}},
      {"host-too-old", {BP_VERSION(0, 0), BP_VERSION(0, kMinor - 1)}},
      {"next-major", {BP_VERSION(1, 0), BP_VERSION(1, 7)}},
      {"last-major", {BP_VERSION(0xffff, 0), BP_VERSION(0xffff, 0xffff)}},
      {"range-upside-down", {BP_VERSION(0, kMinor + 1), BP_ABI_VERSION}},
      {"other-magic", {BP_ABI_VERSION, BP_ABI_VERSION, 0x12345678}},
      {"no-magic", {BP_ABI_VERSION, BP_ABI_VERSION, 0}},
      {"larger-host-table", {BP_ABI_VERSION, BP_ABI_VERSION, BP_NEGOTIATE_MAGIC, 64}},
      {"much-larger-host-table", {BP_ABI_VERSION, BP_ABI_VERSION, BP_NEGOTIATE_MAGIC, 4096}},
      {"newer-and-larger", {BP_ABI_VERSION, BP_VERSION(0, kMinor + 1), BP_NEGOTIATE_MAGIC, 32}},
  };
  for (const auto& [name, one] : asked)
    add(name, 0, Door::kAlone,
        [one = one](Kit& kit) { return CaseOutcome::of(check_answer(one, ask(kit, one))); });
  add("refusal-has-no-effect", 0, Door::kAlone, [](Kit& kit) {
    const Asked refused{BP_VERSION(1, 0), BP_VERSION(1, 7)};
    ask(kit, refused);
    return CaseOutcome::of(check_answer({}, ask(kit, {})));
  });
  add("table", 0, Door::kAlone, [](Kit& kit) { return CaseOutcome::of(check_table(kit)); });
  add("note-and-answer-agree", 0, Door::kAlone, [](Kit& kit) {
    const auto note = rt::preflight(kit.files().plugin);
    if (!note.ok()) return CaseOutcome::fail(note.status().message());
    const bp_negotiation answer = ask(kit, {});
    return CaseOutcome::of(note->abi_min == answer.plugin_min && note->abi_max == answer.plugin_max
                               ? ""
                               : "the note and the answer state other versions");
  });
  const std::vector<const CorpusGraph*> graphs = some_graphs(corpus, 12);
  for (const auto& one : kStructs)
    for (const auto& size : kSizes)
      add(std::string("size-") + size.name + "-of-" + one.name, 0, Door::kTable,
          [&one, &size, graphs](Kit& kit) {
            CaseOutcome last = CaseOutcome::unsupported("no graph of the case is claimed");
            for (const CorpusGraph* source : graphs) {
              auto problem = raw_problem(kit, *source);
              if (!problem.ok()) continue;
              last = guarded([&] {
                if (one.compiles) require_claimed(session(kit), (*problem)->arrays->get());
                return one.run(**problem, session(kit), size.size);
              });
              if (last.verdict != Verdict::kUnsupported) break;
            }
            return last;
          });
  for (const std::size_t more : {8, 16, 64})
    for (const CorpusGraph* source : graphs)
      add("strides+" + std::to_string(more) + ":" + source->name, 1, Door::kTable,
          [source, more](Kit& kit) {
            return with_problem(kit, *source, session(kit),
                                [more](RawProblem& problem, testing::Session& s) {
                                  return run_with_strides(problem, s, more);
                                });
          });
}

}  // namespace backplane::conformance
