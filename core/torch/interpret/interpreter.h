// Runs the frames of a program under capture, instruction by instruction, over real objects. All
// that the program reads from outside goes through World; all that would change the outside ends
// the capture.
#pragma once

#include <Python.h>
//
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/cpython/bytecode/code.h"
#include "core/cpython/frame/hook.h"
#include "core/cpython/frame/running_frame.h"
#include "core/torch/world/c_functions.h"
#include "core/torch/world/world.h"

namespace backplane::capture {

// Whether PyTorch's dispatcher has called this thread's Python: shape functions during a capture,
// the
// __torch_dispatch__ of modes and classes otherwise. Operators do not come to the recorder there,
// so nothing is captured, and no frame of it is the program's.
bool is_below_dispatcher();
// By torch_backplane.disable: neither it nor what it calls is captured.
bool is_disabled(PyObject* function);

// A code object as the interpreter wants it.
struct DecodedCode {
  cpython::Ref object;
  cpython::Code code;
  std::vector<std::int32_t> handler;   // by instruction: index of its exception range or -1
  std::vector<std::int32_t> index_at;  // by code unit: instruction that starts there or -1
};

// Who gets what the next frame gives.
enum class Taker : std::uint8_t {
  kInterpreter,  // the program, or code in C that hands it on
  kReader,       // code in C that looks at it
};

// Of a str; empty where it is none that can be written as UTF-8.
std::string_view text_of(PyObject* name);

struct FrameState;  // of one running frame; interpreter.cpp

// Where a capture that ended can be ended on purpose, in a second attempt.
struct StopPoint {
  std::int32_t instruction = -1;  // of the frame's code; -1: it did not end at an instruction
  std::uint64_t step = 0;
};

// Where the outermost frame of a capture is, and what it has. Values may be null.
struct RootState {
  std::int32_t instruction = -1;
  std::uint64_t step = 0;  // instructions that the frame has run
  std::vector<cpython::Ref> slots, locals;
  bool handles_exception = false;
};

// `names`: of keywords, as vectorcall has them; a tuple or null.
inline std::size_t keyword_count(PyObject* names) {
  return names ? static_cast<std::size_t>(PyTuple_GET_SIZE(names)) : 0;
}

// A class of a Python module, which is imported; null with an error where there is none.
PyTypeObject* find_type(const char* module_name, const char* name);
PyTypeObject* partial_type();

// As isinstance, -1 with an error; a tensor under capture is a torch.FloatTensor, too.
int is_instance_of(PyObject* object, PyObject* classes);

class Interpreter final : public cpython::Evaluator {
 public:
  explicit Interpreter(World& world) : world_(world) {}

  // The first frame of `function` is the outermost. With a `break_step` it ends before the step of
  // that number and leaves its state; its call then gives None.
  void watch_root(PyObject* function, std::uint64_t break_step) {
    root_function_ = function;
    break_step_ = break_step;
  }
  // As it was when the capture was ended: `slots` and `locals` are empty then.
  const RootState& root() const { return root_; }
  // Where the outermost frame can end in place of there: before the locks that are held were taken.
  StopPoint stop_point() const;
  // Stops where the program has ended with a lock held.
  bool settle_locks();
  // Whether a context variable was set and not reset: captures leave none set.
  bool leaves_variable_set() const {
    return std::ranges::any_of(variable_sets_, [](const auto& one) { return one.second > 0; });
  }
  const std::vector<cpython::Ref>& root_arguments() const { return root_arguments_; }
  bool has_broken() const { return has_broken_; }
  bool has_checkpointed() const { return has_checkpointed_; }
  // What a signal's handler raised meanwhile; null: nothing. It ends the capture, and is the
  // caller's.
  PyObject* interruption() const { return interruption_.get(); }
  // What a `raise` of the program throws. A KeyboardInterrupt that is none comes of a signal that C
  // code has seen.
  void note_raised(PyObject* exception) { raised_ = cpython::Ref::borrow(exception); }
  bool has_raised(PyObject* exception) const { return exception == raised_.get(); }

  PyObject* evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) override;

  // Ends generators that the program leaves inside of a `try` or `with`, as it would when they go:
  // those that it no longer holds, or all where it is at its end. False where the capture has
  // stopped.
  bool finish_generators(bool all = true);
  // Ends generators that are left, without their handlers. Within the region.
  void close_generators();

  // What the language does with objects, each read guarded. New references or null, as World.
  PyObject* attribute(PyObject* owner, PyObject* name);
  // Of the object's class, bound; null without an error where there is none.
  PyObject* special_method(PyObject* object, PyObject* name);
  bool set_attribute(PyObject* owner, PyObject* name, PyObject* value);  // null value: delete
  // As object.__setattr__.
  bool store_attribute(PyObject* owner, PyObject* name, PyObject* value);
  PyObject* item(PyObject* container, PyObject* key);
  bool set_item(PyObject* container, PyObject* key, PyObject* value);  // null value: delete
  int contains(PyObject* container, PyObject* value);                  // -1: error
  int truth(PyObject* object);
  PyObject* iterator(PyObject* object);
  PyObject* next(PyObject* iterator);  // null without error: exhausted
  PyObject* global(PyObject* globals, PyObject* builtins, PyObject* name);
  // Writes to what is outside. A null value: delete.
  bool store_global(PyObject* globals, PyObject* builtins, PyObject* name, PyObject* value);
  bool store_cell(PyObject* cell, PyObject* value);
  bool append(PyObject* list, PyObject* value);
  PyObject* call(PyObject* callable, PyObject* const* arguments, std::size_t count,
                 PyObject* keyword_names);

  // While it lives, frames that start are asked by `taker`; not those that these start in turn.
  class TakerScope {
   public:
    TakerScope(Interpreter& interpreter, Taker taker)
        : interpreter_(interpreter), outer_(std::exchange(interpreter.taker_, taker)) {}
    ~TakerScope() { interpreter_.taker_ = outer_; }
    TakerScope(const TakerScope&) = delete;
    TakerScope& operator=(const TakerScope&) = delete;

   private:
    Interpreter& interpreter_;
    Taker outer_;
  };

  World& world() { return world_; }
  std::uint64_t instruction_count() const { return instruction_count_; }
  std::uint64_t frame_count() const { return frame_count_; }
  // What is captured is only looked at, and serves no call.
  void take_sample() { is_sample_ = true; }
  // The capture ended for a reason that the next one knows a way around.
  bool wants_another() const { return wants_another_; }
  // Where the program was when the capture was ended: "file.py:12".
  const std::string& stop_location() const { return stop_location_; }

 private:
  friend struct FrameState;

  const DecodedCode* decoded(PyCodeObject* code);
  bool admit_locals(const cpython::FrameContent& content);
  PyObject* run(FrameState& state, bool throwing, bool& out_suspended);

  // The dict behind a mappingproxy from outside, else the object itself. Borrowed.
  PyObject* unproxied(PyObject* object);

  PyObject* tensor_attribute(PyObject* tensor, PyObject* name);
  // Whether the tensor of the recording answers to the method as the real one would.
  bool knows_fact(std::string_view method, PyObject* tensor) const;
  PyObject* found_by(PyObject* finder, PyObject* owner, PyObject* name);
  PyObject* class_attribute(PyObject* owner, PyObject* name);
  PyObject* super_attribute(PyObject* super, PyObject* name);
  PyObject* instance_attribute(PyObject* owner, PyObject* name);
  PyObject* find_in_instance(PyObject* owner, PyObject* name, bool& out_failed);
  // Into the __dict__ or a slot of an object from outside: kept for later.
  bool store_in_instance(PyObject* owner, PyObject* name, PyObject* value);
  bool store_item(PyObject* container, PyObject* key, PyObject* value);
  // What a slice of a list is replaced with, as it is by now.
  bool take_items(PyObject* key, PyObject*& value);
  // dict.pop of a dict from outside; `fallback` may be null.
  PyObject* pop_item(PyObject* dict, PyObject* key, PyObject* fallback);
  PyObject* bind(PyObject* descriptor, PyObject* owner, PyTypeObject* type);
  PyObject* found_attribute(PyObject* owner, PyObject* name);
  PyObject* missing_attribute(PyObject* owner, PyObject* name);

  PyObject* call_type(PyObject* type, PyObject* const* arguments, std::size_t count,
                      PyObject* keyword_names);
  // As type.__call__.
  PyObject* make_instance(PyTypeObject* type, PyObject* const* arguments, std::size_t count,
                          PyObject* keyword_names);
  PyObject* call_c_function(PyObject* callable, PyObject* const* arguments, std::size_t count,
                            PyObject* keyword_names);
  PyObject* call_operator(PyObject* callable, PyObject* const* arguments, std::size_t count,
                          PyObject* keyword_names);
  PyObject* call_of_class(PyObject* callable, PyObject* const* arguments, std::size_t count,
                          PyObject* keyword_names);
  // Tensor.new and new_tensor.
  PyObject* call_new(PyObject* tensor, std::string_view method, PyObject* const* arguments,
                     std::size_t count, PyObject* keyword_names);
  PyObject* call_state(PyObject* callable, PyObject* const* arguments, std::size_t count,
                       PyObject* keyword_names);
  struct PartialParts {
    cpython::Ref function, first, keywords;  // the last is missing after an error
  };
  PartialParts read_partial(PyObject* partial);
  PyObject* call_partial(PyObject* partial, PyObject* const* arguments, std::size_t count,
                         PyObject* keyword_names);
  PyObject* call_context_variable(PyObject* callable, PyObject* variable,
                                  PyObject* const* arguments, std::size_t count);
  PyObject* call_special(int special, PyObject* const* arguments, std::size_t count);
  PyObject* call_lock(PyObject* lock, const std::string& method, bool has_arguments);
  // What `wrapper` holds as __wrapped__.
  PyObject* call_wrapped(PyObject* wrapper, PyObject* const* arguments, std::size_t count,
                         PyObject* keyword_names);
  PyObject* call_checkpointed(PyObject* const* arguments, std::size_t count,
                              PyObject* keyword_names);
  // `out_known`: whether the object's class is one of those that are called here.
  PyObject* call_object(PyObject* callable, PyObject* const* arguments, std::size_t count,
                        PyObject* keyword_names, bool& out_known);
  PyObject* call_getter(PyObject* getter, PyObject* const* arguments, std::size_t count,
                        PyObject* keyword_names);
  PyObject* call_numpy(PyObject* callable, PyObject* const* arguments, std::size_t count,
                       PyObject* keyword_names);
  PyObject* call_re_compile(PyObject* function, PyObject* const* arguments, std::size_t count,
                            PyObject* keyword_names);
  PyObject* call_dispatch(PyObject* dispatch, PyObject* const* arguments, std::size_t count,
                          PyObject* keyword_names);
  PyObject* call_cached(PyObject* function, PyObject* const* arguments, std::size_t count,
                        PyObject* keyword_names);
  PyObject* call_in_truth(PyObject* function, PyObject* const* arguments, std::size_t count,
                          PyObject* keyword_names);
  bool only_reads(PyObject* function, PyObject* const* arguments, std::size_t count,
                  PyObject* keyword_names);
  bool know_instance_dict(PyObject* instance);
  bool hold_argument(PyObject* argument);
  bool expose_arguments(PyObject* const* arguments, std::size_t count);
  // As `use`, of a function or class in C, says.
  bool expose_for(CUse use, PyObject* self, PyObject* const* arguments, std::size_t count);
  bool guard_handled_exception(PyObject* exc_info);

  World& world_;
  Taker taker_ = Taker::kReader;
  bool in_operator_ = false;  // within torch.ops.<library>.<name>, its call or the search for it
  std::unordered_map<PyCodeObject*, std::unique_ptr<DecodedCode>> codes_;
  std::uint64_t instruction_count_ = 0, frame_count_ = 0;
  std::string stop_location_;
  bool is_break(const FrameState& state);

  PyObject* root_function_ = nullptr;
  const PyObject* handled_before_ = nullptr;
  std::uint64_t break_step_ = 0, root_step_ = 0;
  bool root_seen_ = false, has_broken_ = false, has_checkpointed_ = false;
  RootState root_;
  std::vector<cpython::Ref> root_arguments_;  // all locals when the frame starts
  struct MadeGenerator {
    cpython::Ref object;
    Py_ssize_t held_here = 0;  // references that are none of the program
  };
  std::vector<MadeGenerator> generators_;  // that the program has made
  bool has_ended_ = false;
  std::unordered_map<PyObject*, int> variable_sets_;  // of context variables, less their resets

  // A lock that the program holds, and when it took it.
  struct HeldLock {
    PyObject* lock;
    StopPoint taken;
    std::uint64_t input_versions;
  };
  std::uint64_t input_versions() const;
  struct CachedResult {
    PyObject* function;  // is guarded
    cpython::Ref arguments, result;
    SourceId source;
  };
  std::vector<CachedResult> cached_results_;
  bool is_sample_ = false, wants_another_ = false;
  int run_signal_handlers();  // -1: one raised
  cpython::Ref interruption_, raised_;
  // An exception that is on its way: it comes from a frame that was interpreted; an operator, or a
  // function that runs as it is, has raised it, and no handler has seen it yet.
  bool is_passed_on_ = false, operator_raised_ = false;
  std::vector<HeldLock> held_locks_;
};

// What to call in place of an object of `type`: compiled functions inside of compiled functions are
// captured with them. `unwrap` gives a borrowed reference.
void look_through(PyTypeObject* type, PyObject* (*unwrap)(PyObject*));

}  // namespace backplane::capture
