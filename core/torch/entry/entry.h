// One compiled version of a function: guards, graph, result. Runs it for a call that its guards let
// through.
#pragma once

#include <Python.h>
//
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/torch/bridge/borrowed_tensors.h"
#include "core/torch/capture/capture.h"
#include "core/torch/compiler/program_store.h"
#include "core/torch/entry/sizes.h"

namespace backplane::call {

// What a compiled function's graphs become. Shared by its entries.
struct Programs {
  explicit Programs(compiler::CutOptions options, compiler::ProgramStore::Foreign foreign = {})
      : store(std::move(options), std::move(foreign)) {}

  compiler::ProgramStore store;
  compiler::ProgramStore::Accept accept;
};

class Entry;
inline Entry& entry_of(Entry& entry) { return entry; }

// Why no more entries are kept beside these; empty where another may be. Programs are counted:
// one serves all sizes of a structure.
std::string find_limit(const std::vector<const Entry*>& entries, std::size_t program_limit);

// Where plain Python is no answer sets the Python error: the program's tensors are on another
// device than the one that was asked for, or a device has no memory to compile it.
bool raise_at_once(const Status& status);

class Entry {
 public:
  // `request`: how the call that it was captured from is captured at other sizes.
  static Result<std::unique_ptr<Entry>> make(std::unique_ptr<capture::Captured> captured,
                                             const guards::CallArguments& call, SizeRequest request,
                                             Programs& programs);

  bool check(const guards::CallArguments& call, guards::Registers& out_registers);
  // A new reference, or null with a Python error set. `out_raised_by_hook`: takes what a hook of
  // saved tensors raises, for who has effects to do first.
  PyObject* run(const guards::Registers& registers, cpython::Ref* out_raised_by_hook = nullptr);
  // Why the calling thread's last run failed, if the forward did: nothing was changed, and the
  // Python error is gone. Plain Python is to say what is wrong with the data. Empty else.
  std::string take_refusal();

  std::string explain(const guards::CallArguments& call) const {
    return captured_->guards->explain(call);
  }
  std::vector<std::string> guards_text() const { return captured_->guards->text(); }
  std::string graph_text() const;
  std::string graph_table() const;  // for people
  const capture::Captured& captured() const { return *captured_; }
  // For measuring what a call costs besides: from now on the program gives what it gives now.
  Status stub_program(const guards::Registers& registers);
  // Which compiled program it runs: entries for several sizes may share one.
  const void* program() const { return program_.code.get(); }
  std::uint64_t hits() const { return hits_; }
  void show_refs(cpython::OwnedRefs& out) const {
    out.show(captured_->guards);
    out.show(captured_->recipe);
  }

 private:
  Entry() = default;
  bridge::BorrowedTensors inputs(const guards::Registers& registers) const;

  std::unique_ptr<capture::Captured> captured_;
  compiler::Program program_;
  std::vector<std::uint32_t> counted_;  // autograd::counted_arguments
  std::uint64_t hits_ = 0;
};

}  // namespace backplane::call
