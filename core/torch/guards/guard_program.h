// The guards of one cache entry as a flat list of steps: find a value, or check one. Steps stand in
// the order in which the captured program read things.
#pragma once

#include <Python.h>
//
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/torch/guards/source.h"
#include "core/torch/guards/special_methods.h"
#include "core/torch/guards/tensor_match.h"
#include "core/torch/guards/thread_state.h"

namespace backplane::guards {

// One call, as vectorcall has it. Everything borrowed.
struct CallArguments {
  PyObject* const* values = nullptr;
  std::size_t positional_count = 0;
  PyObject* keyword_names = nullptr;  // tuple or null
};

// Values found by a check, by source; borrowed from the call, its objects and `owned`.
struct Registers {
  std::vector<PyObject*> values;
  std::vector<cpython::Ref> owned;
  std::vector<PyObject*> scratch;
};

class GuardProgram {
 public:
  explicit GuardProgram(const CallArguments& call);

  // While capturing. Each guard is kept once.
  Sources& sources() { return sources_; }
  void guard_type(SourceId source, PyTypeObject* type);
  void guard_identity(SourceId source, PyObject* object);
  // Type and value of a number, str or bytes.
  void guard_equality(SourceId source, PyObject* object);
  // The value of an object that is no number, str or bytes itself, by `content_snapshot`.
  void guard_content(SourceId source, PyObject* snapshot, bool is_immutable);
  // What a function in C that reads a switch answers; arguments: a tuple.
  void guard_answer(PyObject* function, PyObject* arguments, PyObject* answer);
  void guard_length(SourceId source, Py_ssize_t length);
  // Keys of a dict with their order.
  void guard_keys(SourceId source, PyObject* dict);
  // The cache of the function has nothing for these arguments; cached_call.h.
  void guard_not_cached(SourceId function, PyObject* arguments);
  // The dict has no such key.
  void guard_absence(SourceId dict, PyObject* key);
  // What the class and its bases give for the name; null: nothing.
  void guard_type_attribute(PyTypeObject* type, PyObject* name, PyObject* value);
  // Special methods of a class that can change: that one is there, is another or is not. Nothing
  // where nobody can give the class others, as those of C.
  void guard_special_methods(PyTypeObject* type);
  void guard_tensor(SourceId source, const at::Tensor& tensor);
  // Code, globals and the objects that hold defaults.
  void guard_function(SourceId source, PyObject* function);
  void guard_no_instance_dict(SourceId source);
  // The cell is empty.
  void guard_empty_cell(SourceId source);
  // What the descriptor, of a __slots__ entry or a C structure, would read of it is not there.
  void guard_empty_slot(SourceId owner, PyObject* descriptor);
  // Two paths to one object, or to two.
  void guard_same(SourceId a, SourceId b);
  void guard_distinct(SourceId a, SourceId b);
  // No two of the paths lead to one object.
  void guard_all_distinct(std::vector<SourceId> sources);
  // Makes sure that a check leaves the value in its register.
  void load(SourceId source);

  // No guard follows: what finds equal ones goes.
  void finish();

  // Runs no code of the program. Everything is guarded already.
  bool check(const CallArguments& call, Registers& out_registers);
  // The first guard that fails: "x.shape: ...". Empty where none does.
  std::string explain(const CallArguments& call);
  std::vector<std::string> text() const;
  std::size_t size() const { return steps_.size(); }
  // Whether what was guarded after the first `count` steps are functions, classes and modules: what
  // a program is made of, not what it works on.
  bool only_fixed_since(std::size_t count) const;
  // The thread's own dispatch keys when the call was made.
  const c10::impl::LocalDispatchKeySet& local_keys() const { return local_; }
  void show_refs(cpython::OwnedRefs& out) const;

 private:
  enum class Kind : std::uint8_t {
    kLoad,
    kType,
    kIdentity,
    kEquality,
    kContent,  // number: whether it cannot change
    kAnswer,
    kLength,
    kKeys,
    kAbsence,
    kNotCached,
    kTypeAttributes,
    kTensor,
    kFunction,
    kNoInstanceDict,
    kEmptyCell,
    kEmptySlot,
    kSame,
    kDistinct,
    kAllDistinct,
  };
  struct Step {
    Kind kind;
    SourceId source = kNoSource;
    cpython::Ref operand;
    std::int64_t number = 0;
  };
  // All that was read from one class. Its version tag saves the look-ups while it stays.
  struct TypeAttributes {
    cpython::Ref type;
    unsigned int version = 0;
    cpython::Ref order;  // __mro__, a new tuple whenever bases change
    std::vector<std::pair<cpython::Ref, cpython::Ref>> values;  // name, value or null
    std::optional<SpecialMethods> special;
  };
  struct Answer {
    cpython::Ref function, arguments, value;
  };
  struct FunctionParts {
    cpython::Ref code, globals, defaults, keyword_defaults;
  };

  // The steps as `check` takes them: what a source is found by, and the checks that nearly all of
  // its kind have, are one instruction. A dict that is as it was answers for what it alone decides.
  enum class FastKind : std::uint8_t {
    kPositional,
    kKeyword,
    kConstant,
    kInstanceDict,
    kItem,    // of a dict
    kFollow,  // any other source
    kSkip,    // `number` instructions, where the dict `source` is as it was
    kIdentity,
    kSame,
    kDistinct,
    kTensor,
    kStep,  // steps_[number]
  };
  struct Fast {
    FastKind kind;
    bool is_dict = false;  // of the value: its items or absent keys are among the guards
    SourceId source = kNoSource, parent = kNoSource;
    PyObject* operand = nullptr;   // borrowed from the step or the source
    PyTypeObject* type = nullptr;  // that the value must have; null: any
    std::int64_t number = 0;
    Py_ssize_t length = -1;  // that the value, a dict, must have; -1: any
  };
  // What a check does that expects what the last one found. Most of it is a word of memory that
  // must be as it was. Addresses are known beforehand, so that nothing waits for a load; an address
  // is touched only after what holds its object was checked.
  enum class ExpectedKind : std::uint8_t {
    kWords,      // the words up to `number`
    kFoundDict,  // register `source` is `value`, a dict of version `number`
    kDistinct,   // distinct[number] holds
    kFast,       // fast_[number]
  };
  struct Expected {
    ExpectedKind kind;
    SourceId source = kNoSource;
    const void* value = nullptr;
    std::uint64_t number = 0;
  };
  struct ExpectedWord {
    const void* address = nullptr;
    std::uint64_t value = 0;
  };
  struct ExpectedClass {
    PyTypeObject* type = nullptr;  // borrowed from types_
    unsigned int version = 0;
  };
  struct ExpectedDistinct {
    std::vector<PyObject*> held;  // sorted
    std::vector<SourceId> found;
  };
  struct Expectation {
    std::vector<ExpectedClass> classes;
    std::vector<Expected> steps;
    std::vector<ExpectedWord> words;
    std::vector<KnownTensor> tensors;  // asked last: nothing else is found in them
    std::vector<ExpectedDistinct> distinct;
    std::vector<std::pair<SourceId, PyObject*>> values;  // of registers that are read
  };
  struct ExpectationBuilder;
  static bool is_distinct(const ExpectedDistinct& distinct, const Registers& registers);
  bool check_ordinarily(const CallArguments& call, Registers& registers);
  // kUnknown: something was replaced, which may be as good.
  enum class Outcome : std::uint8_t { kHolds, kFails, kUnknown };
  Outcome check_expected(const CallArguments& call, Registers& registers);
  void expect(const Registers& registers);

  void make_fast();
  std::vector<bool> find_leaves() const;
  bool depends_on_dict_alone(const Step& step) const;
  const Step* find_step(Kind kind, SourceId source) const;
  void append_fast(std::size_t step);
  void append_load(const Step& step);
  bool run_fast(const Fast& fast, const CallArguments& call, Registers& registers);
  bool run_found(const Fast& fast, const CallArguments& call, Registers& registers);
  void note_dict(const Fast& fast, PyObject* value);

  void find(SourceId source);
  bool add(Kind kind, SourceId source, PyObject* operand, std::int64_t number = 0);
  TypeAttributes& attributes_of(PyTypeObject* type);
  void add_pair(Kind kind, SourceId a, SourceId b);
  bool run(const Step& step, const CallArguments& call, Registers& registers);
  static bool check_answer(const Answer& answer);
  static bool check_types(TypeAttributes& attributes);
  static bool check_function(const FunctionParts& parts, PyObject* function);
  bool check_shape(const CallArguments& call) const;
  bool has_same_keys() const;
  std::string step_text(const Step& step) const;

  void prepare(Registers& registers);

  // What was found in a dict, for as long as its version tag stays. Tags are never given twice.
  struct SeenDict {
    std::uint64_t version = 0;  // 0: nothing is known
    bool is_same = false;       // as in the last check that held
    std::uint8_t changes = 0;   // seen so far, up to kOftenChanged
  };
  // A dict that changed as often is looked into each time.
  static constexpr std::uint8_t kOftenChanged = 4;

  Sources sources_;
  std::vector<Step> steps_;
  std::vector<bool> is_loaded_;                                     // by source
  std::unordered_multimap<std::uint64_t, std::uint32_t> steps_of_;  // by kind and source
  std::vector<TypeAttributes> types_;
  std::unordered_map<PyTypeObject*, std::uint32_t> type_index_;
  std::vector<TensorMatch> tensors_;
  std::vector<FunctionParts> functions_;
  std::vector<Answer> answers_;
  std::vector<std::vector<SourceId>> distinct_;
  std::unordered_set<std::uint64_t> pairs_;  // that are guarded to be one object, or two
  std::size_t positional_count_;
  std::vector<cpython::Ref> keyword_names_;
  ThreadState state_;
  c10::impl::LocalDispatchKeySet local_;  // when the call was made

  std::vector<Fast> fast_;
  std::vector<bool> is_used_;  // by source: read besides its own guards
  std::vector<SourceId> dict_sources_;
  std::vector<SeenDict> dicts_;     // by source
  std::vector<PyObject*> in_dict_;  // by source: borrowed from its dict, while that is as it was
  bool has_stale_dict_ = false;     // in the check that runs
  bool has_changed_dict_ = false;   // likewise, of those that seldom change

  std::optional<Expectation> expected_;
  std::uint32_t expected_hits_ = 0;
  std::uint32_t checks_until_expecting_ = 0, patience_ = 0;  // doubles with each early miss
};

}  // namespace backplane::guards
