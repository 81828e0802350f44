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
#include <optional>
#include <thread>

#include "core/ir/view.h"
#include "sdk/conformance/src/raw.h"

namespace backplane::conformance {
namespace {

using Verdict = conformance::Verdict;
using CaseOutcome = conformance::Outcome;
using testing::Session;

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

// What a plugin has of the host's and owns.
struct Owned {
  std::int64_t errors = testing::live_errors(), sinks = testing::live_bytes();
};
// Empty: no more than `before`.
std::string left_behind(const Owned& before, const std::string& when) {
  const Owned now;
  if (now.errors > before.errors) return "an error object is never released " + when;
  if (now.sinks > before.sinks) return "a byte sink is never released " + when;
  return {};
}

// A session, a graph of the corpus on it, right results; all closed again.
CaseOutcome one_life(Kit& kit, const CorpusGraph& source) {
  Session own(testing::load_plugin(kit.files().plugin), kit.files().device);
  return with_problem(kit, source, own, [](RawProblem& problem, Session& s) {
    return CaseOutcome::of(problem.difference(s.run(problem.arrays->get(), problem.inputs)));
  });
}

CaseOutcome live_often(Kit& kit, const Corpus& corpus, int lives) {
  const CorpusGraph& source = *some_graphs(corpus, 5).at(2);
  std::optional<Owned> first;  // the first life may make what stays as long as the process
  for (int life = 0; life < lives; ++life) {
    if (CaseOutcome one = one_life(kit, source); one.verdict != Verdict::kPass) {
      one.text = "life " + std::to_string(life) + ": " + one.text;
      return one;
    }
    if (!first) first.emplace();
  }
  return CaseOutcome::of(left_behind(*first, "though everything is closed"));
}

// What grows while the same thing is done again and again.
CaseOutcome check_growth(RawProblem& problem, Session& s) {
  const bp_graph& graph = problem.arrays->get();
  std::vector<bp_io_request> requests;
  const bp_compile_args args = compile_args(s, graph, requests);
  bp_compile_args no_args = args;
  no_args.struct_size = 0;
  const auto cycle = [&](int times) {
    for (int i = 0; i < times; ++i) {
      bp_executable* executable = nullptr;
      testing::require_ok(s.api().compile(s.plugin(), &args, &executable));
      bp_buffer* buffer = nullptr;
      testing::require_ok(s.api().buffer_create(s.device(), 1 << 16, &buffer));
      s.api().buffer_release(buffer);
      if (s.api().executable_save != nullptr) {
        bp_byte_sink* const blob = testing::host_api().bytes_create(nullptr);
        testing::host_api().error_release(nullptr, s.api().executable_save(executable, blob));
        testing::host_api().bytes_release(blob);
      }
      s.api().executable_release(executable);
    }
  };
  // Questions that end with an error or with a list.
  const auto ask = [&](int times) {
    for (int i = 0; i < times; ++i) {
      bp_executable* none = nullptr;
      testing::host_api().error_release(nullptr, s.api().compile(s.plugin(), &no_args, &none));
      if (none != nullptr) s.api().executable_release(none);
      static_cast<void>(s.claims(graph));
    }
  };
  bp_executable* const kept = s.compile(graph);
  const BoundCall bound = bound_call(s, kept, bind(s, problem));
  const auto call = [&](int times) {
    for (int i = 0; i < times; ++i) testing::require_ok(s.api().execute(kept, &bound.args));
  };
  constexpr int kWarm = 20, kTimes = 100;
  cycle(kWarm);
  ask(kWarm);
  call(kWarm);
  const std::size_t threads = entries_of("/proc/self/task"), files = entries_of("/proc/self/fd");
  const std::size_t mappings = mapping_count(), memory = resident_bytes();
  const Owned owned;
  cycle(kTimes);
  const auto grown = [](std::size_t before, std::size_t after) {
    return after > before ? after - before : 0;
  };
  if (std::string left = left_behind(owned, "after a compilation"); !left.empty())
    return CaseOutcome::fail(std::move(left));
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
  if (std::string left = left_behind(owned, "after a call"); !left.empty())
    return CaseOutcome::fail(std::move(left));
  ask(kTimes);
  return CaseOutcome::of(left_behind(owned, "after a question or a refusal"));
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
CaseOutcome check_event(RawProblem& problem, Session& s, bool by_query) {
  if (!s.has_streams()) return CaseOutcome::unsupported("no streams");
  bp_executable* const executable = s.compile(problem.arrays->get());
  const Bound bound = bind(s, problem);
  std::vector<testing::HostTensor> results = problem.results();
  bp_order order{};
  order.stream = s.stream();
  for (int round = 0; round < 8; ++round) {
    // What an early reader would find.
    for (std::size_t i = 0; i < results.size(); ++i) {
      std::vector<std::byte> poison(results[i].bytes(), std::byte{0xfe});
      if (!poison.empty())
        testing::require_ok(
            s.copy(Session::host_range(poison.data(), poison.size()), bound.outputs[i]));
    }
    order.signal = s.event();
    testing::require_ok(s.execute(executable, bound.inputs, bound.outputs, order));
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
              s.copy(bound.outputs[i], Session::host_range(results[i].data(), results[i].bytes())));
    };
    read();
    const auto first = results;
    if (std::string wrong = problem.difference(results); !wrong.empty())
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
  return CaseOutcome::of(WEXITSTATUS(status) == kDone
                             ? ""
                             : "the process ended with " + std::to_string(WEXITSTATUS(status)));
}

}  // namespace

void add_life_cases(const Corpus& corpus, std::vector<Case>& out) {
  const std::pair<const char*, End> ends[] = {
      {"returns", End::kReturn},          {"quick-exit", End::kQuick},
      {"objects-alive", End::kAbandoned}, {"with-exit-handlers", End::kAtExit},
      {"after-a-thread", End::kThread},   {"after-a-fork", End::kForkedChild}};
  for (const auto& [name, end] : ends)
    add_guarded(out, std::string("life:end-") + name, 0, Door::kAlone,
                [end = end](Kit& kit) { return end_process(kit, end); });
  add_guarded(out, "life:once", 0, Door::kAlone,
              [&corpus](Kit& kit) { return live_often(kit, corpus, 1); });
  add_guarded(out, "life:opened-often", 0, Door::kAlone,
              [&corpus](Kit& kit) { return live_often(kit, corpus, 20); });
  add_guarded(out, "life:counters", 1, Door::kTable,
              [](Kit& kit) { return CaseOutcome::of(counters_return(kit)); });
  add_guarded(out, "events:copies-keep-order", 1, Door::kTable,
              [](Kit& kit) { return CaseOutcome::of(copies_keep_order(kit)); });
  std::size_t number = 0;
  for (const CorpusGraph* source : some_graphs(corpus, 40)) {
    const int level = number++ < 10 ? 1 : 2;
    add_guarded(out, "events:query:" + source->name, level, Door::kTable, [source](Kit& kit) {
      return with_problem(kit, *source, session(kit), [](RawProblem& problem, Session& s) {
        return check_event(problem, s, true);
      });
    });
    add_guarded(out, "events:wait:" + source->name, level, Door::kTable, [source](Kit& kit) {
      return with_problem(kit, *source, session(kit), [](RawProblem& problem, Session& s) {
        return check_event(problem, s, false);
      });
    });
    if (number % 2 == 0)
      add_guarded(out, "leaks:" + source->name, 2, Door::kTable, [source](Kit& kit) {
        return with_problem(kit, *source, session(kit), check_growth);
      });
  }
}

}  // namespace backplane::conformance
