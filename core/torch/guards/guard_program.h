// The guards of one cache entry as a flat list of steps: find a value, or check one. Steps stand in
// the order in which the captured program read things.
#pragma once

#include <Python.h>
//
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/torch/guards/source.h"
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
  void guard_length(SourceId source, Py_ssize_t length);
  // Keys of a dict with their order.
  void guard_keys(SourceId source, PyObject* dict);
  // The dict has no such key.
  void guard_absence(SourceId dict, PyObject* key);
  // What the class and its bases give for the name; null: nothing.
  void guard_type_attribute(PyTypeObject* type, PyObject* name, PyObject* value);
  void guard_tensor(SourceId source, const at::Tensor& tensor);
  // Code, globals and the objects that hold defaults.
  void guard_function(SourceId source, PyObject* function);
  void guard_no_instance_dict(SourceId source);
  // The cell is empty.
  void guard_empty_cell(SourceId source);
  // Two paths to one object, or to two.
  void guard_same(SourceId a, SourceId b);
  void guard_distinct(SourceId a, SourceId b);
  // Makes sure that a check leaves the value in its register.
  void load(SourceId source);

  // Runs no code of the program.
  bool check(const CallArguments& call, Registers& out_registers);
  // The first guard that fails: "x.shape: ...". Empty where none does.
  std::string explain(const CallArguments& call);
  std::vector<std::string> text() const;
  std::size_t size() const { return steps_.size(); }

 private:
  enum class Kind : std::uint8_t {
    kLoad,
    kType,
    kIdentity,
    kEquality,
    kLength,
    kKeys,
    kAbsence,
    kTypeAttributes,
    kTensor,
    kFunction,
    kNoInstanceDict,
    kEmptyCell,
    kSame,
    kDistinct,
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
  };
  struct FunctionParts {
    cpython::Ref code, globals, defaults, keyword_defaults;
  };

  bool add(Kind kind, SourceId source, PyObject* operand, std::int64_t number = 0);
  bool run(const Step& step, const CallArguments& call, const c10::impl::LocalDispatchKeySet& local,
           Registers& registers);
  static bool check_types(TypeAttributes& attributes);
  bool check_shape(const CallArguments& call) const;
  std::string step_text(const Step& step) const;

  void prepare(Registers& registers);
  PyObject* load_item(const Step& step, Registers& registers);

  // What was found in a dict, for as long as its version tag stays. Tags are never given twice.
  struct SeenDict {
    std::uint64_t version = 0;  // 0: nothing is known
    bool is_fresh = false;      // in the check that runs
  };

  Sources sources_;
  std::vector<Step> steps_;
  std::vector<bool> is_loaded_;     // by source
  std::vector<SeenDict> dicts_;     // by source
  std::vector<PyObject*> in_dict_;  // by source: borrowed from its dict, while that is fresh
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> steps_of_;  // by kind and source
  std::vector<TypeAttributes> types_;
  std::unordered_map<PyTypeObject*, std::uint32_t> type_index_;
  std::vector<TensorMatch> tensors_;
  std::vector<FunctionParts> functions_;
  std::size_t positional_count_;
  std::vector<cpython::Ref> keyword_names_;
  ThreadState state_;
  c10::impl::LocalDispatchKeySet local_;  // when the call was made
};

}  // namespace backplane::guards
