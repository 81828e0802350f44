// All compiled programs of one function, for both doors: recordings of one structure share one for
// all their sizes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/fork.h"
#include "core/base/status.h"
#include "core/torch/compiler/cut_entry.h"
#include "core/torch/compiler/invented_sizes.h"
#include "core/torch/compiler/size_family.h"

namespace backplane::compiler {

// Which sizes of a recording its program is compiled for.
struct SizeChoice {
  bool all_static = false;        // no other size shares the program
  std::vector<std::int64_t> key;  // recordings with another share none
  // What a program that is new is recorded at as well. None: it is static at first.
  std::optional<SizeInventor> inventor;
  std::function<Result<record::Recorded>(const InventedSizes&)> record;
  SizeInventor::Note note;
};

// A recording, compiled, and what holds for its sizes.
struct Program {
  std::shared_ptr<autograd::CutProgram> code;
  std::shared_ptr<const autograd::SizeRecord> sizes;
};

class ProgramStore {
 public:
  // Hears of each stage that is compiled for a plugin, and may refuse it.
  using Accept = std::function<Status(Stage)>;
  // Compiles a recording without gradients in place of CutEntry. `examples`: of the call, by input
  // of the graph.
  using Foreign = std::function<Result<std::shared_ptr<StagedProgram>>(
      record::Recorded, const std::vector<at::Tensor>& examples)>;

  explicit ProgramStore(CutOptions options, Foreign foreign = {})
      : options_(std::move(options)), foreign_(std::move(foreign)) {}

  // Any thread; without the GIL, for it waits for other threads. kUnsupported where this thread is
  // adding already: a finalizer ran while sizes were invented.
  Result<Program> add(record::Recorded recorded, const SizeChoice& sizes,
                      const std::vector<at::Tensor>& examples, const CutEntry::Eager& eager,
                      const Accept& accept);

  struct Counts {
    std::uint64_t structures = 0;  // so far
    std::uint64_t splits = 0;      // sizes that refuted a guess about others; compiled anew
  };
  Counts counts() const {
    return {structures_.load(std::memory_order_relaxed), splits_.load(std::memory_order_relaxed)};
  }

 private:
  // `name`: of the recording that it is compiled for; `recorded` may be an earlier one of its
  // structure.
  Result<std::shared_ptr<StagedProgram>> compile(record::Recorded recorded, const std::string& name,
                                                 const std::vector<at::Tensor>& examples,
                                                 const CutEntry::Eager& eager) const;

  const CutOptions options_;
  const Foreign foreign_;
  std::atomic<std::uint64_t> structures_{0}, splits_{0};
  std::atomic<std::thread::id> adding_{};  // who holds mutex_
  LongMutex mutex_;                        // held over recordings and plugins; guards:
  SizeFamily family_;
};

}  // namespace backplane::compiler
