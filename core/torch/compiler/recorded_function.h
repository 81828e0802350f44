// A program that is recorded where its arguments have new sizes, compiled where its structure is
// new, and else only run.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/fork.h"
#include "core/base/status.h"
#include "core/torch/autograd/cut_program.h"
#include "core/torch/compiler/cut_entry.h"
#include "core/torch/compiler/program_store.h"
#include "core/torch/record/recorder.h"

namespace backplane::compiler {

// Takes and gives tensors, numbers and None. Called with tensors without memory while it is
// recorded, with real ones where PyTorch runs it. Its exceptions pass.
using Callable = std::function<std::vector<c10::IValue>(std::span<const c10::IValue>)>;

// A size that is known to change: recorded at invented values as well before anything is compiled.
struct DynamicSize {
  std::uint32_t argument = 0;
  std::int32_t dim = -1;     // -1: the argument itself, an integer
  std::uint32_t symbol = 0;  // sizes of one symbol are equal in every call
};

struct RecordedOptions {
  CutOptions cut;
  std::vector<std::string> argument_names;
  std::vector<std::uint32_t> static_arguments;  // weights and buffers, by argument
  std::vector<std::uint32_t> buffers;           // those of them that programs write
  std::vector<DynamicSize> dynamic_sizes;
  record::Locate locate;
};

class RecordedFunction {
 public:
  RecordedFunction(Callable program, RecordedOptions options);
  ~RecordedFunction();

  // Runs where these sizes are known; else null. Any thread, without the GIL. ATen's exceptions
  // pass.
  std::optional<Result<std::vector<c10::IValue>>> try_call(std::span<const c10::IValue> arguments);

  // Makes these sizes known: records the program and compiles it where no entry serves them.
  // kUnsupported, with the reason, where it cannot be recorded.
  Status add(std::span<const c10::IValue> arguments, const ProgramStore::Accept& accept);

  std::vector<c10::IValue> run_eagerly(std::span<const c10::IValue> arguments) const {
    return program_(arguments);
  }

  struct Counts {
    std::uint64_t recordings = 0, record_ns = 0;  // all of them
    std::uint64_t sizes = 0;                      // that are known now
    std::uint64_t structures = 0;                 // of the program, so far
    std::uint64_t splits = 0;  // sizes that refuted a guess about others; compiled anew
  };
  Counts counts() const;

 private:
  // Everything that a program can depend on besides the contents of tensors.
  struct Key {
    std::vector<std::int64_t> words;
    std::vector<std::int64_t> offsets;  // of the tensors, which most programs do not depend on
  };
  struct Hit {
    bool serves(const Key& call) const {
      return words == call.words && (!offsets || *offsets == call.offsets);
    }
    std::vector<std::int64_t> words;
    std::optional<std::vector<std::int64_t>> offsets;  // none: any
    std::uint64_t hash = 0;
    Program program;
  };

  static void make_key(std::span<const c10::IValue> arguments, Key& out_key);
  std::shared_ptr<const Hit> find(const Key& key);
  void remember(std::shared_ptr<const Hit> hit);
  Result<record::Recorded> record(std::span<const c10::IValue> arguments);
  SizeChoice choose_sizes(std::span<const c10::IValue> arguments);

  Callable program_;
  RecordedOptions options_;
  std::atomic<std::uint64_t> recordings_{0}, record_ns_{0};
  LongMutex adding_;  // one recording at a time; taken without the GIL
  ProgramStore programs_;
  mutable std::mutex mutex_;                    // guards what follows; never held over foreign code
  std::list<std::shared_ptr<const Hit>> hits_;  // most recently used first
  std::unordered_multimap<std::uint64_t, std::list<std::shared_ptr<const Hit>>::iterator> by_hash_;
};

}  // namespace backplane::compiler
