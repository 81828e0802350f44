// One recording in progress: its tape, and the rules of what may enter it. A session is used by one
// thread at a time; it follows autograd's engine into its threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/status.h"
#include "core/torch/record/layout.h"
#include "core/torch/record/program_tape.h"
#include "core/torch/record/tape.h"

namespace backplane::record {

// Leaves ATen by unwinding through it; record() turns it into a Status.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Shapes found by each way, for reports.
struct ShapeCounts {
  std::uint32_t compiled = 0, python = 0, run_on_zeros = 0;
};

// Where the program is, "model.py:12"; null where that is not known.
using Locate = std::function<const std::string*()>;

class Session final : public c10::DebugInfoBase {
 public:
  Session();

  // The recording that the calling thread is part of, or null.
  static Session* current();
  // Within one, that none is seen.
  static std::shared_ptr<Session> none();

  Tape tape;
  ShapeCounts shapes;
  std::shared_ptr<ProgramTape> program;  // while the program runs, where it may be differentiated
  bool in_backward = false;
  std::unordered_map<const c10::TensorImpl*, Moved> moved;
  bool has_turned = false;  // and with its dimensions in another order: so may what follows from it
  bool has_moved() const { return has_turned || !moved.empty(); }
  std::unordered_set<const void*> strided;  // storages of which as_strided has taken strides
  // Those where it has of a view: its gradient goes by the view, not by the whole.
  std::unordered_set<const void*> strided_parts;
  bool reads_offsets = false;  // where an argument starts in its storage may show in the program
  Locate locate;               // may be empty
  std::unordered_set<const OperatorInfo*> python_shapes;  // those that shapes.python counts

  // While the program runs: makes a tensor that it meets one more argument, and gives what stands
  // for it. Throws Refusal.
  std::function<at::Tensor(const at::Tensor&)> add_argument;

  std::uint64_t number() const { return number_; }

  at::Tensor make_input(const at::Tensor& like);
  ValueNumber add_value(at::Tensor meta, c10::Device device, ValueOrigin origin);
  at::Tensor wrap(ValueNumber value) const;

  // A tensor with memory becomes a constant of the program.
  ValueNumber add_constant(const at::Tensor& tensor);
  // The value that `tensor` is in this recording; `reader` is named in the refusal of a tensor with
  // memory of its own, whose content may be another in the next call.
  ValueNumber number_of(const at::Tensor& tensor, std::string_view reader);

  // Of the call that is being recorded. In the backward: of the forward's call.
  const std::string* find_location();

  // Computes a value that depends on no input and on no random draw; else nothing.
  std::optional<at::Tensor> evaluate(ValueNumber value);

  // Remembers the reason and throws it: the program may catch the exception, and what it would do
  // then is not what it does with real tensors.
  [[noreturn]] void refuse(std::string reason, Code code = Code::kUnsupported);
  // Of an exception on its way to the program.
  void note_error(const char* text, Code code = Code::kUnsupported);
  const std::string& refusal() const { return refusal_; }
  Code refusal_code() const { return refusal_code_; }

 private:
  std::uint64_t number_;
  bool is_none_ = false;
  std::string refusal_;
  Code refusal_code_ = Code::kUnsupported;
  // By autograd's sequence number, which a node of the backward has from its forward.
  std::unordered_map<std::uint64_t, const std::string*> locations_;
};

// Makes a session the thread's current one; Session::none(): hides the one that is.
class SessionScope {
 public:
  explicit SessionScope(std::shared_ptr<Session> session);

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace backplane::record
