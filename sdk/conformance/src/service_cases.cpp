// Hosts that fail: each service in its turn refuses, lies or does the least that it may.
#include <atomic>
#include <cstring>

#include "sdk/conformance/src/raw.h"

namespace backplane::conformance {
namespace {

using CaseOutcome = conformance::Outcome;
using testing::Session;

// Which call of a service fails; 0: none. One session at a time.
std::atomic<int> countdown{0};
bool fails_now() { return countdown.load() > 0 && countdown.fetch_sub(1) == 1; }

testing::Negotiate real_entry = nullptr;
const bp_host_api* faulty_host = nullptr;
void negotiate_with_fault(bp_negotiation* negotiation) {
  negotiation->host = faulty_host;
  real_entry(negotiation);
}

bp_error* refuse(const char* text) {
  auto args = sdk::make<bp_error_args>();
  args.code = BP_OUT_OF_MEMORY;
  args.message = {text, std::strlen(text)};
  return testing::host_api().error_create(nullptr, &args);
}

struct Fault {
  const char* name;
  void (*install)(bp_host_api& host);
  bool counts;  // fails at one call; else at all of them
};
const Fault kFaults[] = {
    {"claim_add-fails",
     [](bp_host_api& host) {
       host.claim_add = [](bp_claim_sink* sink, const bp_claim* claim) -> bp_error* {
         if (fails_now()) return refuse("no memory for a claim");
         return testing::host_api().claim_add(sink, claim);
       };
     },
     true},
    {"refuse_add-fails",
     [](bp_host_api& host) {
       host.refuse_add = [](bp_claim_sink* sink, std::uint32_t node, bp_refusal reason,
                            bp_string text) -> bp_error* {
         if (fails_now()) return refuse("no memory for a refusal");
         return testing::host_api().refuse_add(sink, node, reason, text);
       };
     },
     true},
    {"bytes_write-fails",
     [](bp_host_api& host) {
       host.bytes_write = [](bp_byte_sink* sink, const void* data, std::size_t size) -> bp_error* {
         if (fails_now()) return refuse("the disk is full");
         return testing::host_api().bytes_write(sink, data, size);
       };
     },
     true},
    {"parallel_for-fails",
     [](bp_host_api& host) {
       host.parallel_for = [](bp_host* h, std::size_t count, std::size_t grain, void* user,
                              bp_error* (*body)(void*, std::size_t, std::size_t)) -> bp_error* {
         if (fails_now()) return refuse("no thread to be had");
         return testing::host_api().parallel_for(h, count, grain, user, body);
       };
     },
     true},
    {"parallel_for-in-small-pieces",
     [](bp_host_api& host) {
       host.thread_count = [](bp_host*) { return std::uint32_t{64}; };
       host.parallel_for = [](bp_host*, std::size_t count, std::size_t grain, void* user,
                              bp_error* (*body)(void*, std::size_t, std::size_t)) -> bp_error* {
         const std::size_t step = std::max<std::size_t>(grain, 1);
         // Last first: nobody promised an order.
         for (std::size_t end = count; end > 0;) {
           const std::size_t begin = (end - 1) / step * step;
           if (bp_error* const error = body(user, begin, end)) return error;
           end = begin;
         }
         return nullptr;
       };
     },
     false},
    {"cache-holds-noise",
     [](bp_host_api& host) {
       host.cache_get = [](bp_host*, bp_string, bp_byte_sink* sink) -> std::int32_t {
         const std::string noise(777, '\x5a');
         return testing::host_api().bytes_write(sink, noise.data(), noise.size()) == nullptr;
       };
     },
     false},
    {"cache-holds-nothing",
     [](bp_host_api& host) {
       host.cache_get = [](bp_host*, bp_string, bp_byte_sink*) -> std::int32_t { return 1; };
     },
     false},
    {"cache-cuts-off",
     [](bp_host_api& host) {
       host.cache_get = [](bp_host* h, bp_string key, bp_byte_sink* sink) -> std::int32_t {
         if (testing::host_api().cache_get(h, key, sink) == 0) return 0;
         std::string& bytes = *testing::host_bytes(sink);
         bytes.resize(bytes.size() / 2);
         return 1;
       };
     },
     false},
    {"cache-forgets",
     [](bp_host_api& host) {
       host.cache_put = [](bp_host*, bp_string, const void*, std::size_t) {};
     },
     false},
    {"clock-stands-still",
     [](bp_host_api& host) { host.clock_ns = [](bp_host*) { return std::uint64_t{0}; }; }, false},
    {"everything-is-cancelled",
     [](bp_host_api& host) {
       host.is_cancelled = [](const bp_cancel*) { return std::int32_t{1}; };
     },
     false},
    {"errors-are-one-object",
     [](bp_host_api& host) {
       host.error_create = [](bp_host* h, const bp_error_args* args) {
         static bp_error* const only = [&] {
           bp_error* const made = testing::host_api().error_create(h, args);
           for (int i = 0; i < 1000; ++i) testing::host_api().error_retain(h, made);
           return made;
         }();
         return only;
       };
     },
     false},
    {"errors-have-no-text",
     [](bp_host_api& host) {
       host.error_message = [](bp_host*, const bp_error*) { return bp_string{nullptr, 0}; };
     },
     false},
};

// With the fault at call `number`: a named error or the right result, never a wrong one; and
// without it the right result again.
CaseOutcome run_faulty(RawProblem& problem, Session& s, const Fault& fault, int number) {
  const bp_graph& graph = problem.arrays->get();
  const auto attempt = [&]() -> std::string {
    std::string wrong = problem.difference(s.run(graph, problem.inputs));
    if (s.api().executable_save == nullptr) return wrong;
    if (s.describe(s.compile(graph)).requirement.size != 0) s.save(s.compile(graph));
    return wrong;
  };
  if (std::strcmp(fault.name, "claim_add-fails") == 0) {
    countdown = number;
    bool failed = false;
    try {
      s.claims(graph);
    } catch (const testing::Failure&) {
      failed = true;
    }
    if (countdown == 0 && !failed)
      return CaseOutcome::fail("claims succeeds although the host did not take a claim");
  }
  countdown = fault.counts ? number : 0;
  try {
    if (std::string wrong = attempt(); !wrong.empty())
      return CaseOutcome::fail("with the fault: " + wrong);
  } catch (const testing::Failure& failure) {
    if (std::string(failure.what()).empty()) return CaseOutcome::fail("an error without a text");
    if (!fault.counts && failure.code() != BP_CANCELLED && failure.code() != BP_DATA_CORRUPT)
      return CaseOutcome::fail(std::string("a service that does little is no failure: ") +
                               failure.what());
  }
  if (fault.counts) {
    countdown = 0;
    if (std::string wrong = attempt(); !wrong.empty())
      return CaseOutcome::fail("after the fault: " + wrong);
  }
  return {};
}

// With the fault at call `number`: a named error or the right result, never a wrong one; and
// without it the right result again.
CaseOutcome run(Kit& kit, const CorpusGraph& source, const Fault& fault, int number) {
  static auto* const table = new bp_host_api;
  *table = testing::host_api();
  fault.install(*table);
  faulty_host = table;
  real_entry = testing::load_plugin(kit.files().plugin);
  countdown = 0;
  Session own(&negotiate_with_fault, kit.files().device);
  return with_problem(kit, source, own, [&](RawProblem& problem, Session& s) {
    return run_faulty(problem, s, fault, number);
  });
}

// Blobs that were cut off or changed: an error, or an executable; never a crash.
CaseOutcome damage_blob(RawProblem& problem, Session& s, bool cuts) {
  if (s.api().executable_save == nullptr) return CaseOutcome::unsupported("no blobs");
  bp_executable* const executable = s.compile(problem.arrays->get());
  if (s.describe(executable).requirement.size == 0)
    return CaseOutcome::unsupported("it cannot be saved");
  const std::string blob = s.save(executable);
  s.load(blob);
  const std::size_t step = std::max<std::size_t>(1, blob.size() / 200);
  for (std::size_t at = 0; at < blob.size(); at += step) {
    std::string damaged = cuts ? blob.substr(0, at) : blob;
    if (!cuts) damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    bp_executable* loaded = nullptr;
    const testing::Outcome outcome = testing::Outcome::take(
        s.api().executable_load(s.device(), damaged.data(), damaged.size(), &loaded));
    if (outcome.ok()) s.api().executable_release(loaded);
    if (outcome.ok() && cuts)
      return CaseOutcome::fail("a blob that ends after " + std::to_string(at) + " of " +
                               std::to_string(blob.size()) + " bytes is loaded");
  }
  return {};
}

}  // namespace

void add_service_cases(const Corpus& corpus, std::vector<Case>& out) {
  const std::vector<const CorpusGraph*> graphs = some_graphs(corpus, 10);
  for (const Fault& fault : kFaults)
    for (const CorpusGraph* source : graphs)
      for (const int number : {1, 2, 3}) {
        if (number > 1 && !fault.counts) continue;
        const std::string which = fault.counts ? "@" + std::to_string(number) : std::string();
        add_guarded(out, std::string("services:") + fault.name + which + ":" + source->name, 2,
                    Door::kAlone, [source, &fault, number](Kit& kit) {
                      return run(kit, *source, fault, number);
                    });
      }
  for (const CorpusGraph* source : graphs)
    for (const bool cuts : {true, false})
      add_guarded(out, std::string("cache:") + (cuts ? "cut:" : "changed:") + source->name, 2,
                  Door::kTable, [source, cuts](Kit& kit) {
                    return with_problem(kit, *source, session(kit),
                                        [cuts](RawProblem& problem, Session& s) {
                                          return damage_blob(problem, s, cuts);
                                        });
                  });
}

}  // namespace backplane::conformance
