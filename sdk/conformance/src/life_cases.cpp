// From the first call to the last: order of releases, what is left behind, streams and events, ends
// of the process.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/ir/view.h"
#include "sdk/conformance/src/raw.h"

namespace backplane::conformance {
namespace {

using Verdict = conformance::Verdict;
using CaseOutcome = conformance::Outcome;
using testing::Session;

CaseOutcome outcome_of(std::string wrong) {
  return wrong.empty() ? CaseOutcome{} : CaseOutcome::fail(std::move(wrong));
}

std::size_t entries_of(const char* folder) {
  std::error_code error;
  std::size_t count = 0;
  for (std::filesystem::directory_iterator entry(folder, error), end; entry != end;
       entry.increment(error))
    ++count;
  return count;
}
std::size_t mapping_count() {
  std::ifstream file("/proc/self/maps");
  return static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
}
// Pages of the process in memory.
std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// A session, a graph of the corpus on it, right results; all closed again.
std::string one_life(Kit& kit, const CorpusGraph& source) {
  auto problem = raw_problem(kit, source);
  if (!problem.ok()) return {};
  Session s(testing::load_plugin(kit.files().plugin), kit.files().device);
  if (s.claims((*problem)->arrays->get()).claimed.size() < (*problem)->graph.nodes.size())
    return {};
  return (*problem)->difference(s.run((*problem)->arrays->get(), (*problem)->inputs));
}

CaseOutcome live_often(Kit& kit, const Corpus& corpus, int lives) {
  const CorpusGraph& source = *some_graphs(corpus, 5).at(2);
  for (int life = 0; life < lives; ++life)
    if (std::string wrong = one_life(kit, source); !wrong.empty())
      return CaseOutcome::fail("life " + std::to_string(life) + ": " + wrong);
  return {};
}

// What grows while the same thing is done again and again.
CaseOutcome check_growth(Kit& kit, const CorpusGraph& source) {
  auto problem = raw_problem(kit, source);
  if (!problem.ok()) return {Verdict::kMistrusted, problem.status().message(), 0, {}, {}};
  Session& s = session(kit);
  const bp_graph& graph = (*problem)->arrays->get();
  if (s.claims(graph).claimed.size() < graph.node_count)
    return {Verdict::kUnsupported, "not claimed", 0, {}, {}};
  const auto cycle = [&](int times) {
    for (int i = 0; i < times; ++i) {
      std::vector<bp_io_request> requests(graph.input_count + graph.output_count);
      for (auto& request : requests) request.layout.kind = BP_LAYOUT_STRIDED;
      auto args = sdk::make<bp_compile_args>();
      args.device = s.device();
      args.info = &s.info();
      args.graph = &graph;
      args.inputs = requests.data();
      args.outputs = requests.data() + graph.input_count;
      args.io_stride = sizeof(bp_io_request);
      bp_executable* executable = nullptr;
      testing::require_ok(s.api().compile(s.plugin(), &args, &executable));
      bp_buffer* buffer = nullptr;
      testing::require_ok(s.api().buffer_create(s.device(), 1 << 16, &buffer));
      s.api().buffer_release(buffer);
      s.api().executable_release(executable);
    }
  };
  bp_executable* const kept = s.compile(graph);
  std::vector<bp_binding> bindings;
  const auto bind = [&](std::uint64_t bytes) {
    bp_binding& binding = bindings.emplace_back();
    if (bytes != 0) binding.range = Session::range(s.buffer(bytes), bytes);
  };
  for (const testing::HostTensor& input : (*problem)->inputs) {
    bind(input.bytes());
    if (input.bytes() != 0)
      testing::require_ok(
          s.copy(Session::host_range(const_cast<std::byte*>(input.data()), input.bytes()),
                 bindings.back().range));
  }
  for (const ir::ValueId output : (*problem)->graph.outputs)
    bind(memory_bytes((*problem)->graph, output, (*problem)->classes));
  auto execution = sdk::make<bp_execute_args>();
  execution.inputs = bindings.data();
  execution.outputs = bindings.data() + graph.input_count;
  execution.binding_stride = sizeof(bp_binding);
  if (const std::uint64_t workspace = s.describe(kept).workspace_bytes; workspace != 0)
    execution.workspace = Session::range(s.buffer(workspace), workspace);
  const auto call = [&](int times) {
    for (int i = 0; i < times; ++i) testing::require_ok(s.api().execute(kept, &execution));
  };
  constexpr int kWarm = 20, kTimes = 100;
  cycle(kWarm);
  call(kWarm);
  const std::size_t threads = entries_of("/proc/self/task"), files = entries_of("/proc/self/fd");
  const std::size_t mappings = mapping_count(), memory = resident_bytes();
  const std::int64_t errors = testing::live_errors(), bytes = testing::live_bytes();
  cycle(kTimes);
  const auto grown = [](std::size_t before, std::size_t after) {
    return after > before ? after - before : 0;
  };
  if (testing::live_errors() != errors)
    return CaseOutcome::fail("an error object is never released");
  if (testing::live_bytes() != bytes) return CaseOutcome::fail("a byte sink is never released");
  if (grown(threads, entries_of("/proc/self/task")) > 2)
    return CaseOutcome::fail("threads grow with compilations");
  if (grown(files, entries_of("/proc/self/fd")) > 2)
    return CaseOutcome::fail("open files grow with compilations");
  if (grown(mappings, mapping_count()) > kTimes / 2)
    return CaseOutcome::fail("memory mappings grow with compilations");
  // A leaked buffer alone would be 64 KiB each time.
  if (grown(memory, resident_bytes()) > kTimes * (std::size_t{48} << 10))
    return CaseOutcome::fail(std::to_string(grown(memory, resident_bytes()) / kTimes) +
                             " bytes more with each compilation");
  const std::size_t before_calls = resident_bytes();
  call(kTimes);
  if (grown(before_calls, resident_bytes()) > kTimes * (std::size_t{48} << 10))
    return CaseOutcome::fail(std::to_string(grown(before_calls, resident_bytes()) / kTimes) +
                             " bytes more with each call");
  if (testing::live_errors() != errors)
    return CaseOutcome::fail("an error object of a call is never released");
  return {};
}

std::string counters_return(Kit& kit) {
  Session& s = session(kit);
  if (s.api().device_counters == nullptr) throw testing::Failure("no counters", BP_UNSUPPORTED);
  const auto live = [&] {
    auto counters = sdk::make<bp_device_counters>();
    testing::require_ok(s.api().device_counters(s.device(), &counters));
    return counters.live_bytes;
  };
  const std::uint64_t before = live();
  bp_buffer* const buffer = s.buffer(1 << 20);
  const std::uint64_t during = live();
  s.release(buffer);
  const std::uint64_t after = live();
  if (during < before + (1 << 20)) return "live_bytes does not count a buffer";
  if (after > before + (1 << 16)) return "live_bytes still counts a released buffer";
  return {};
}

// ---- Streams and events -----------------------------------------------------------------------

// Waits by query alone, then looks, and looks again later.
CaseOutcome check_event(Kit& kit, const CorpusGraph& source, bool by_query) {
  auto problem = raw_problem(kit, source);
  if (!problem.ok()) return {Verdict::kMistrusted, problem.status().message(), 0, {}, {}};
  Session& s = session(kit);
  const bp_graph& graph = (*problem)->arrays->get();
  if (s.claims(graph).claimed.size() < graph.node_count)
    return {Verdict::kUnsupported, "not claimed", 0, {}, {}};
  if (!s.has_streams()) return {Verdict::kUnsupported, "no streams", 0, {}, {}};
  bp_executable* const executable = s.compile(graph);
  std::vector<bp_range> inputs, outputs;
  for (testing::HostTensor& input : (*problem)->inputs) {
    if (input.bytes() == 0) {
      inputs.push_back({});
      continue;
    }
    bp_buffer* const buffer = s.buffer(input.bytes());
    testing::require_ok(s.copy(Session::host_range(input.data(), input.bytes()),
                               Session::range(buffer, input.bytes())));
    inputs.push_back(Session::range(buffer, input.bytes()));
  }
  std::vector<testing::HostTensor> results;
  for (const ir::ValueId output : (*problem)->graph.outputs) {
    const ir::TensorType& type = (*problem)->graph.values[output].type;
    const testing::HostTensor& tensor = results.emplace_back(
        runtime::to_bp_dtype(type.dtype), ir::resolve(type.dims, (*problem)->classes),
        ir::resolve(type.strides, (*problem)->classes));
    bp_buffer* const buffer = tensor.bytes() != 0 ? s.buffer(tensor.bytes()) : nullptr;
    outputs.push_back(Session::range(buffer, tensor.bytes()));
  }
  bp_order order{};
  order.stream = s.stream();
  for (int round = 0; round < 8; ++round) {
    // What an early reader would find.
    for (std::size_t i = 0; i < results.size(); ++i) {
      std::vector<std::byte> poison(results[i].bytes(), std::byte{0xfe});
      if (!poison.empty())
        testing::require_ok(s.copy(Session::host_range(poison.data(), poison.size()), outputs[i]));
    }
    order.signal = s.event();
    testing::require_ok(s.execute(executable, inputs, outputs, order));
    if (by_query) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!s.is_done(order.signal)) {
        if (std::chrono::steady_clock::now() > end)
          return CaseOutcome::fail("the event is never complete");
        std::this_thread::yield();
      }
    } else {
      s.wait(order.signal);
      if (!s.is_done(order.signal))
        return CaseOutcome::fail("an event that was waited for is not complete");
    }
    const auto read = [&] {
      for (std::size_t i = 0; i < results.size(); ++i)
        if (results[i].bytes() != 0)
          testing::require_ok(
              s.copy(outputs[i], Session::host_range(results[i].data(), results[i].bytes())));
    };
    read();
    const auto first = results;
    if (std::string wrong = (*problem)->difference(results); !wrong.empty())
      return CaseOutcome::fail("the event was complete before the work: " + wrong);
    if (round != 0) continue;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    read();
    for (std::size_t i = 0; i < results.size(); ++i)
      if (std::memcmp(first[i].data(), results[i].data(), results[i].bytes()) != 0)
        return CaseOutcome::fail("an output changed after its event");
  }
  return {};
}

// A copy to the device that later work of the stream must see, and a copy back.
std::string copies_keep_order(Kit& kit) {
  Session& s = session(kit);
  if (!s.has_streams()) throw testing::Failure("no streams", BP_UNSUPPORTED);
  constexpr std::size_t kCount = 4096;
  bp_buffer* const first = s.buffer(kCount * 4);
  bp_buffer* const second = s.buffer(kCount * 4);
  bp_order order{};
  order.stream = s.stream();
  for (std::uint32_t round = 1; round < 20; ++round) {
    std::vector<std::uint32_t> numbers(kCount, round), back(kCount, 0);
    testing::require_ok(s.copy(Session::host_range(numbers.data(), kCount * 4),
                               Session::range(first, kCount * 4), order));
    testing::require_ok(
        s.copy(Session::range(first, kCount * 4), Session::range(second, kCount * 4), order));
    bp_order last = order;
    last.signal = s.event();
    testing::require_ok(s.copy(Session::range(second, kCount * 4),
                               Session::host_range(back.data(), kCount * 4), last));
    s.wait(last.signal);
    if (back != numbers) return "a copy on a stream ran before an earlier one";
  }
  return {};
}

// ---- Ends of the process ----------------------------------------------------------------------

enum class End : std::uint8_t { kReturn, kQuick, kAbandoned, kAtExit, kThread, kForkedChild };

// The child opens the device, leaves objects alive as asked, and ends.
CaseOutcome end_process(Kit& kit, End end) {
  constexpr int kDone = 78;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    try {
      auto* const s = new Session(testing::load_plugin(kit.files().plugin), kit.files().device);
      s->upload<float>({1, 2, 3});
      if (end == End::kReturn) delete s;
      if (end == End::kQuick) std::quick_exit(kDone);
      if (end == End::kAtExit) std::atexit([] {});
      if (end == End::kThread) std::thread([] {}).join();
      if (end == End::kForkedChild) {
        const pid_t grandchild = ::fork();
        if (grandchild == 0)
          std::exit(kDone);  // with the plugin's handlers, and without its threads
        int status = 0;
        ::waitpid(grandchild, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != kDone) ::_exit(3);
      }
    } catch (...) {
      ::_exit(4);
    }
    std::exit(kDone);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status))
    return CaseOutcome::fail("the process ended by signal " + std::to_string(WTERMSIG(status)) +
                             (WTERMSIG(status) == SIGALRM ? ": it did not end by itself" : ""));
  if (WEXITSTATUS(status) == 3)
    return CaseOutcome::fail("a forked child that made no call did not end by itself");
  return outcome_of(WEXITSTATUS(status) == kDone
                        ? ""
                        : "the process ended with " + std::to_string(WEXITSTATUS(status)));
}

}  // namespace

void add_life_cases(const Corpus& corpus, std::vector<Case>& out) {
  const auto add = [&](const std::string& name, int level, Door door,
                       std::function<CaseOutcome(Kit&)> run) {
    out.push_back({name, level, door,
                   [run = std::move(run)](Kit& kit) { return guarded([&] { return run(kit); }); }});
  };
  const std::pair<const char*, End> ends[] = {
      {"returns", End::kReturn},          {"quick-exit", End::kQuick},
      {"objects-alive", End::kAbandoned}, {"with-exit-handlers", End::kAtExit},
      {"after-a-thread", End::kThread},   {"after-a-fork", End::kForkedChild}};
  for (const auto& [name, end] : ends)
    add(std::string("life:end-") + name, 0, Door::kAlone,
        [end = end](Kit& kit) { return end_process(kit, end); });
  add("life:once", 0, Door::kAlone, [&corpus](Kit& kit) { return live_often(kit, corpus, 1); });
  add("life:opened-often", 0, Door::kAlone,
      [&corpus](Kit& kit) { return live_often(kit, corpus, 20); });
  add("life:counters", 1, Door::kTable, [](Kit& kit) { return outcome_of(counters_return(kit)); });
  add("events:copies-keep-order", 1, Door::kTable,
      [](Kit& kit) { return outcome_of(copies_keep_order(kit)); });
  std::size_t number = 0;
  for (const CorpusGraph* source : some_graphs(corpus, 40)) {
    const int level = number++ < 10 ? 1 : 2;
    add("events:query:" + source->name, level, Door::kTable,
        [source](Kit& kit) { return check_event(kit, *source, true); });
    add("events:wait:" + source->name, level, Door::kTable,
        [source](Kit& kit) { return check_event(kit, *source, false); });
    if (number % 2 == 0)
      add("leaks:" + source->name, 2, Door::kTable,
          [source](Kit& kit) { return check_growth(kit, *source); });
  }
}

}  // namespace backplane::conformance
