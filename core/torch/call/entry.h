// One compiled version of a function: guards, graph, result. Runs it for a call that its guards let
// through.
#pragma once

#include <Python.h>
//
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/torch/call/gradient.h"
#include "core/torch/capture/capture.h"

namespace backplane::call {

class Entry {
 public:
  static Result<std::unique_ptr<Entry>> make(std::unique_ptr<capture::Captured> captured,
                                             const MakeRunner& make_runner);

  bool check(const guards::CallArguments& call, guards::Registers& out_registers);
  // A new reference, or null with a Python error set.
  PyObject* run(const guards::Registers& registers);

  std::string explain(const guards::CallArguments& call) {
    return captured_->guards->explain(call);
  }
  std::vector<std::string> guards_text() const { return captured_->guards->text(); }
  std::string graph_text() const;
  const capture::Captured& captured() const { return *captured_; }
  std::uint64_t hits() const { return hits_; }

 private:
  // An output that shares memory with an input or an earlier output.
  struct View {
    bool of_input = false;
    std::uint32_t base = 0;
    std::int64_t offset = 0;  // of_input: from the start of the storage; else from the base's start
  };

  Entry() = default;
  Status plan_outputs();
  bool inputs_overlap(const guards::Registers& registers) const;

  std::unique_ptr<capture::Captured> captured_;
  GraphRunner runner_;  // where no gradients flow; else
  std::shared_ptr<const DifferentiableGraph> differentiable_;
  std::vector<std::optional<View>> views_;  // by output
  bool mutates_ = false;
  std::uint64_t hits_ = 0;
};

}  // namespace backplane::call
