// The frames of a compiled function that is not captured as a whole: each frame of the program has
// entries of its own, and an entry may end at a break. Its modified code then runs what cannot be
// captured and goes on with a resume function, whose frame has entries too.
#pragma once

#include <Python.h>
//
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/cpython/bytecode/rewrite.h"
#include "core/cpython/frame/hook.h"
#include "core/torch/entry/entry_list.h"
#include "core/torch/frames/dump.h"

namespace backplane::call {

// How often something happened, by its reason.
class ReasonCounts {
 public:
  void add(const std::string& reason);
  const std::vector<std::pair<std::string, std::uint64_t>>& all() const { return counts_; }

 private:
  std::vector<std::pair<std::string, std::uint64_t>> counts_;
};

// One compiled version of a frame.
struct FrameEntry {
  std::shared_ptr<Entry> entry;
  cpython::Ref code;         // modified; null: the entry gives the frame's result itself
  cpython::Ref function;     // of `code`, where it has no closure
  std::string break_reason;  // empty: up to the frame's end
  // What led to the break; asked at hits 1, 2, 4 and so on whether it is so still: what a library
  // makes ready when it is first used is no reason to break for ever.
  std::unique_ptr<guards::GuardProgram> read_to_break;
  std::uint64_t break_hits = 0;
  std::uint64_t number = 0;  // in the names of what it calls

  // Nothing of the program's may be among the constants of `code`, which the collector cannot see.
  void show_refs(cpython::OwnedRefs& out) const {
    out.show(entry);
    out.show(function);
    out.show(read_to_break);
  }
};

inline Entry& entry_of(FrameEntry& kept) { return *kept.entry; }

// One code object of the program, or resume code of it, with its entries.
struct ProgramCode {
  std::string name;
  std::shared_ptr<const cpython::OriginalCode> original;  // null: not taken apart yet
  cpython::FrameCode own;
  cpython::Ref globals;
  EntryList<FrameEntry> entries;

  void show_refs(cpython::OwnedRefs& out) const {
    out.show(globals);
    out.show(entries);
  }
};

struct FrameOptions {
  std::string name;     // of the compiled function
  cpython::Ref target;  // its code behind decorators: the program's, in whatever file; may be null
  EntryLimits limits;
  std::shared_ptr<Dump> dump;
  Dynamic dynamic = Dynamic::kAutomatic;
  std::shared_ptr<ReasonCounts> size_notes;  // why sizes are not generalised
  std::shared_ptr<Programs> programs;
};

// All of one compiled function. Everything needs the GIL.
class Frames final : public cpython::Evaluator, public std::enable_shared_from_this<Frames> {
 public:
  explicit Frames(FrameOptions options) : options_(std::move(options)) {}

  PyObject* evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) override;

  const std::vector<std::shared_ptr<ProgramCode>>& codes() const { return codes_; }
  const ReasonCounts& plain_reasons() const { return plain_reasons_; }
  const ReasonCounts& break_reasons() const { return break_reasons_; }
  std::uint64_t hits() const { return hits_; }
  std::uint64_t plain_calls() const { return plain_calls_; }
  void show_refs(cpython::OwnedRefs& out) const;

 private:
  std::shared_ptr<ProgramCode> find_code(PyCodeObject* code, PyObject* globals);
  // Null: to be run as plain Python.
  std::shared_ptr<FrameEntry> find_entry(ProgramCode& code, PyObject* function,
                                         const guards::CallArguments& call,
                                         guards::Registers& out_registers);
  Result<std::shared_ptr<FrameEntry>> capture(ProgramCode& code, PyObject* function,
                                              const guards::CallArguments& call);
  // Another entry in the place of one that breaks, where that may get further by now; null: none.
  std::shared_ptr<FrameEntry> get_further(ProgramCode& code, FrameEntry& entry, PyObject* function,
                                          const guards::CallArguments& call,
                                          guards::Registers& out_registers);
  static Result<std::vector<cpython::Ref>> take_state(const ProgramCode& code,
                                                      capture::Interpreter& interpreter,
                                                      PyObject* returned, cpython::BreakPlan& plan,
                                                      cpython::ModifiedPrefix& prefix);
  Result<cpython::ResumePoint> resume_point(const ProgramCode& code, std::int32_t target,
                                            const cpython::FrameLayout& layout);
  void log_entry(const ProgramCode& code, const FrameEntry& entry) const;
  // Runs the entry, and what it goes on with. `values`: the frame's locals, then the function; they
  // are given up to the frame as soon as it needs no second start.
  PyObject* run(std::shared_ptr<ProgramCode> code, std::shared_ptr<FrameEntry> entry,
                PyObject* function, std::vector<cpython::Ref> values, guards::Registers& registers);
  static PyObject* run_modified(FrameEntry& entry, PyObject* function,
                                std::vector<cpython::Ref>& values,
                                const guards::Registers& registers);
  static PyObject* run_plain(const ProgramCode& code, PyObject* function,
                             std::vector<cpython::Ref>& values);
  void count_plain(const ProgramCode& code, const std::string& reason);

  FrameOptions options_;
  std::vector<std::shared_ptr<ProgramCode>> codes_;
  std::unordered_map<PyCodeObject*, std::vector<std::shared_ptr<ProgramCode>>> by_code_;
  std::unordered_map<std::string, std::shared_ptr<ProgramCode>> resume_codes_;  // by what they are
  std::unordered_set<PyCodeObject*> own_codes_;  // modified ones; their entries hold them
  ReasonCounts plain_reasons_, break_reasons_;
  std::uint64_t hits_ = 0, plain_calls_ = 0, next_number_ = 0;
};

}  // namespace backplane::call
