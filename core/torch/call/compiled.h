// What torch_backplane.compile gives back: a callable that looks for an entry whose guards hold,
// else captures, else has the function's frames captured each for itself, else calls the function
// as it is and says why.
#pragma once

#include <Python.h>
//
#include <memory>
#include <string>
#include <vector>

#include "core/torch/entry/entry_list.h"
#include "core/torch/frames/dump.h"
#include "core/torch/frames/frames.h"

namespace backplane::call {

struct CompiledOptions {
  std::string name;
  EntryLimits limits;
  std::string dump_folder;  // empty: no files
  bool strict = false;
  Dynamic dynamic = Dynamic::kAutomatic;
  std::shared_ptr<Programs> programs;
  std::vector<PyObject*> of_programs;  // objects of Python that `programs` holds, for the collector
};

// State of one compiled function. Everything needs the GIL.
class CompiledCallable {
 public:
  CompiledCallable(PyObject* target, CompiledOptions options);

  // A new reference, or null with a Python error set.
  PyObject* call(const guards::CallArguments& call);

  PyObject* target() const { return target_.get(); }
  const std::vector<std::shared_ptr<Entry>>& entries() const { return entries_.all(); }
  // Of a function that is not captured as a whole; else null.
  const Frames* frames() const { return frames_.get(); }
  // Why calls ran as plain Python, and how often each; without those of single frames.
  const ReasonCounts& plain_reasons() const { return plain_reasons_; }
  // Why sizes that were to change are not generalised.
  const ReasonCounts& size_notes() const { return *size_notes_; }
  std::uint64_t hits() const { return entries_.hits(); }
  std::uint64_t plain_calls() const { return plain_calls_; }
  void reset();
  void show_refs(cpython::OwnedRefs& out) const;

 private:
  // Where nothing can be captured; an error if it must be.
  PyObject* call_uncaptured(const guards::CallArguments& call, const std::string& reason);
  PyObject* call_in_frames(const guards::CallArguments& call);
  // As plain Python where the plugin refuses the data, unless `strict`.
  PyObject* run(Entry& entry, const guards::Registers& registers,
                const guards::CallArguments& call);
  PyObject* call_plainly(const guards::CallArguments& call, const std::string& reason);
  Result<std::shared_ptr<Entry>> capture(const guards::CallArguments& call);

  cpython::Ref target_;
  CompiledOptions options_;
  EntryList<Entry> entries_;
  ReasonCounts plain_reasons_;
  std::shared_ptr<ReasonCounts> size_notes_ = std::make_shared<ReasonCounts>();
  std::shared_ptr<Frames> frames_;
  std::shared_ptr<Dump> dump_;
  std::size_t capture_count_ = 0;
  std::uint64_t plain_calls_ = 0;
};

// The Python type; null with an error set where it cannot be made.
PyTypeObject* compiled_type();
// A new object of it.
PyObject* make_compiled(PyObject* target, CompiledOptions options);
CompiledCallable* find_compiled(PyObject* object);

}  // namespace backplane::call
