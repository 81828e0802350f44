// Objects that share nothing, and host memory that is the caller's own again when a copy returns.
#include <backplane/sdk/testing/session.hpp>

#include <algorithm>
#include <array>
#include <set>

#include "sdk/conformance/src/raw.h"

namespace backplane::conformance {

namespace {

using CaseOutcome = conformance::Outcome;
using testing::Session;

// What is created one after the other and alive together, each released once.
template <class Object>
class Several {
 public:
  explicit Several(void (*release)(Object*)) : release_(release) {}
  ~Several() {
    for (Object* object : std::set<Object*>(all_.begin(), all_.end())) release_(object);
  }
  Several(const Several&) = delete;
  Several& operator=(const Several&) = delete;
  void add(Object* object) { all_.push_back(object); }
  const std::vector<Object*>& all() const { return all_; }
  bool are_apart() const {
    return std::set<Object*>(all_.begin(), all_.end()).size() == all_.size();
  }

 private:
  void (*release_)(Object*);
  std::vector<Object*> all_;
};

std::string buffers_are_apart(Kit& kit) {
  Session& s = session(kit);
  static constexpr std::array<std::size_t, 8> kSizes{4096, 4096, 256, 4096, 65536, 64, 4096, 256};
  Several<bp_buffer> buffers(s.api().buffer_release);
  for (const std::size_t bytes : kSizes) {
    bp_buffer* made = nullptr;
    testing::require_ok(s.api().buffer_create(s.device(), bytes, &made));
    buffers.add(made);
  }
  if (!buffers.are_apart()) return "buffer_create answers a buffer that is in use";
  const auto content = [](std::size_t i) {
    return std::vector<std::byte>(kSizes[i], static_cast<std::byte>(i + 1));
  };
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    std::vector<std::byte> bytes = content(i);
    testing::require_ok(s.copy(Session::host_range(bytes.data(), bytes.size()),
                               Session::range(buffers.all()[i], bytes.size())));
  }
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    std::vector<std::byte> bytes(kSizes[i]);
    testing::require_ok(s.copy(Session::range(buffers.all()[i], bytes.size()),
                               Session::host_range(bytes.data(), bytes.size())));
    if (bytes != content(i))
      return "two buffers share memory: one changed when another was written";
  }
  return {};
}

std::string events_are_apart(Kit& kit) {
  Session& s = session(kit);
  if (!s.has_streams()) throw testing::Failure("no streams", BP_UNSUPPORTED);
  Several<bp_event> events(s.api().event_release);
  for (int i = 0; i < 4; ++i) {
    bp_event* made = nullptr;
    testing::require_ok(s.api().event_create(s.device(), &made));
    events.add(made);
  }
  return events.are_apart() ? "" : "event_create answers an event that is in use";
}

CaseOutcome executables_are_apart(RawProblem& problem, Session& s) {
  std::vector<bp_io_request> requests;
  const bp_compile_args args = compile_args(s, problem.arrays->get(), requests);
  Several<bp_executable> executables(s.api().executable_release);
  for (int i = 0; i < 3; ++i) {
    bp_executable* made = nullptr;
    testing::require_ok(s.api().compile(s.plugin(), &args, &made));
    executables.add(made);
  }
  return CaseOutcome::of(executables.are_apart()
                             ? ""
                             : "compile answers an executable that is in use: each is released by "
                               "itself");
}

// Copies in a stream that has work, without a signal and with one end in host memory. What the
// caller does with that memory afterwards must not matter.
std::string copies_return_done(Kit& kit, bool to_device) {
  Session& s = session(kit);
  if (!s.has_streams()) throw testing::Failure("no streams", BP_UNSUPPORTED);
  constexpr std::size_t kBytes = std::size_t{4} << 20, kSmall = 4096;
  bp_buffer* const buffer = s.buffer(kBytes);
  bp_buffer* const other = s.buffer(kBytes);
  bp_order order{};
  order.stream = s.stream();
  const auto on_device = [&](std::size_t bytes) { return Session::range(buffer, bytes); };
  std::vector<std::byte> poison(kBytes, std::byte{0xfe});
  for (int round = 1; round <= 12; ++round) {
    const std::size_t bytes = round % 2 == 0 ? kBytes : kSmall;
    const std::vector<std::byte> numbers(bytes, static_cast<std::byte>(round));
    std::vector<std::byte> host = numbers;
    testing::require_ok(s.copy(to_device ? Session::host_range(poison.data(), bytes)
                                         : Session::host_range(host.data(), bytes),
                               on_device(bytes)));
    for (int i = 0; i < 8; ++i)
      testing::require_ok(s.copy(Session::range(other, kBytes / 2),
                                 {other, nullptr, kBytes / 2, kBytes / 2}, order));
    if (!to_device) {
      std::ranges::fill(host, std::byte{0xfe});
      testing::require_ok(s.copy(on_device(bytes), Session::host_range(host.data(), bytes), order));
      const std::vector<std::byte> seen = host;
      bp_order last = order;
      last.signal = s.event();
      testing::require_ok(s.copy({}, {}, last));  // nothing writes to `host` later
      s.wait(last.signal);
      if (seen != numbers)
        return "a copy to the host without a signal returned before the data were there";
      continue;
    }
    testing::require_ok(s.copy(Session::host_range(host.data(), bytes), on_device(bytes), order));
    std::ranges::fill(host, std::byte{0xfe});
    std::vector<std::byte> back(bytes);
    bp_order last = order;
    last.signal = s.event();
    testing::require_ok(s.copy(on_device(bytes), Session::host_range(back.data(), bytes), last));
    s.wait(last.signal);
    if (back != numbers)
      return "a copy from the host without a signal returned before the data were read";
  }
  return {};
}

}  // namespace

void add_memory_cases(const Corpus& corpus, std::vector<Case>& out) {
  add_guarded(out, "memory:buffers-are-apart", 1, Door::kTable,
              [](Kit& kit) { return CaseOutcome::of(buffers_are_apart(kit)); });
  add_guarded(out, "memory:events-are-apart", 1, Door::kTable,
              [](Kit& kit) { return CaseOutcome::of(events_are_apart(kit)); });
  for (const CorpusGraph* source : some_graphs(corpus, 10))
    add_guarded(out, "memory:executables-are-apart:" + source->name, 1, Door::kTable,
                [source](Kit& kit) {
                  return with_problem(kit, *source, session(kit), executables_are_apart);
                });
  add_guarded(out, "events:copy-to-the-device-returns-done", 1, Door::kTable,
              [](Kit& kit) { return CaseOutcome::of(copies_return_done(kit, true)); });
  add_guarded(out, "events:copy-to-the-host-returns-done", 1, Door::kTable,
              [](Kit& kit) { return CaseOutcome::of(copies_return_done(kit, false)); });
}

}  // namespace backplane::conformance
