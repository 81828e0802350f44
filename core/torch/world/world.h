// What a program under capture may see of the world outside, and how: every object from outside
// comes in through one door, which makes the guard; tensors become tensors of the recording there.
#pragma once

#include <Python.h>
//
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/c_stack.h"
#include "core/cpython/frame/hook.h"
#include "core/torch/guards/guard_program.h"
#include "core/torch/world/autocast.h"
#include "core/torch/world/effects.h"

namespace backplane::capture {

using guards::kNoSource;
using guards::SourceId;
using guards::SourceKind;

// A tensor from outside that the program reads.
struct InputTensor {
  SourceId source;
  cpython::Ref real;
  cpython::Ref traced;
};

// Functions that give objects return a new reference, or null with a Python error set: one of the
// program's own, or the one of `stop`.
class World {
 public:
  // Makes the tensor of the recording that stands for one from outside.
  using Hand = std::function<at::Tensor(const at::Tensor&)>;

  World(guards::GuardProgram& guards, Hand hand)
      : guards_(guards), hand_(std::move(hand)), began_with_grad_(at::GradMode::is_enabled()) {}

  bool began_with_grad() const { return began_with_grad_; }
  // A recording runs outside of inference mode.
  void begin_in_inference(bool inference) { began_in_inference_ = inference; }
  bool began_in_inference() const { return began_in_inference_; }

  // Ends the capture: the program's own handlers never see the error. The first reason stays.
  PyObject* stop(const std::string& reason);
  bool stopped() const { return !reason_.empty(); }
  const std::string& reason() const { return reason_; }
  // Every function that calls itself for what an object of the program holds asks this first.
  static bool is_too_deep() { return c_stack_left() < 2 * cpython::kLeastStack; }

  // The door: `object`, borrowed, was found at `source`.
  PyObject* read(PyObject* object, SourceId source);
  // An object that is guarded by what led to it, such as the attribute of a class.
  PyObject* read_constant(PyObject* object);
  // What C code gave, stolen. An object that nobody but `owner_count` known owners holds is new,
  // and the program's own.
  PyObject* admit(PyObject* object, const char* giver, Py_ssize_t owner_count = 1);
  // The function of the outermost frame: whatever leads to it has its code and globals.
  void know_frame_function(PyObject* function, SourceId source) { know(function, source); }
  // The program made it.
  void own(PyObject* object);

  // An object of the program's code, or of some cache: the same in every call. It may be in a place
  // outside as well, which must hold this one then, not one that is equal.
  void share(PyObject* object);
  bool is_shared(PyObject* object) const { return shared_.contains(object); }

  bool is_own(PyObject* object) const;
  // kNoSource for what is not from outside.
  SourceId source_of(PyObject* object) const;
  // As source_of, for what is guarded by its value too: where the object itself is in a later call.
  SourceId place_of(PyObject* object) const;
  bool is_outside(PyObject* object) const { return source_of(object) != kNoSource; }
  // The program asks whether the two are one object.
  void guard_identity_of(PyObject* a, PyObject* b);
  // The __dict__ of an object of the program, which it looks at as such.
  void own_dict(PyObject* dict, PyObject* owner);
  PyObject* owner_of(PyObject* dict) const;  // null where it is nobody's
  // A dict that was written is found by this path; it may be that of several objects.
  void guard_place(PyObject* dict, SourceId path);
  // The program looks for the key in a dict: one that is equal to nothing is found by its address.
  void guard_identity_of_nan(PyObject* key);
  bool is_input_tensor(PyObject* object) const { return input_of_.count(object) != 0; }

  // What the real tensor behind `traced`, one from outside, has under this name in its __dict__, or
  // null; guarded. A read may also stop.
  PyObject* read_own_attribute(PyObject* traced, PyObject* name);
  // What `descriptor`, of a C structure, gives for the real tensor.
  PyObject* read_of_input(PyObject* traced, PyObject* descriptor);
  // Whether instances that the capture makes may end with it: the class has no __del__. Guarded;
  // stops otherwise.
  bool ends_silently(PyTypeObject* type);
  // A frame of the program no longer holds the object, though the capture does. False: it has
  // stopped, as the program might see the object end.
  bool let_go(PyObject* object);
  bool has_let_go(PyObject* object) const { return let_go_.contains(object); }
  // The program asks whether `object` is among others, by its address: all such stay distinct.
  void note_identity(PyObject* object);
  // Its address, which the program compares with others alone: in the next call it is another. A
  // new reference.
  PyObject* address_of(PyObject* object);
  bool is_address(PyObject* number) const;
  // The program looks for `object` in `container`, which compares it with what is inside.
  void note_search(PyObject* object, PyObject* container);
  // Code in C compares what is in the container, for which one object is enough.
  void note_compared(PyObject* container);
  // Once the program has ended: guards which objects are one. Where effects are not deferred, also
  // that attributes which it set and set back again are what they were; stops where one is not.
  bool settle();

  // What code in C may do with an object decides what is guarded first. All end the capture where
  // no guard covers what can be read, or where the program has changed it.
  // It looks at whatever it finds, at all depths.
  bool expose(PyObject* object);
  // It takes the pieces of a container and hands them on.
  bool expose_items(PyObject* object);
  // It takes the next of an iterator.
  bool expose_next(PyObject* iterator);
  // It copies the attributes of an instance.
  bool expose_state(PyObject* object);
  // It may call the object: functions in C that ask more of objects than expose() covers.
  bool expose_callable(PyObject* object);
  // The text of a class has its name.
  void guard_name(PyObject* type);
  // An own copy of a list or tuple from outside, with tensors of the recording.
  PyObject* copy_sequence(PyObject* object);
  // Whether it is a list or tuple from outside, or one of the program's own that leads to such.
  bool holds_outside_sequence(PyObject* object);

  // Whether writes to what is outside are kept for later; else they end the capture, but for
  // attributes that are set back again.
  bool defers_effects() const { return defers_effects_; }
  void defer_effects() { defers_effects_ = true; }
  // How the program leaves autocast, where that is not as it was.
  const std::optional<AutocastState>& autocast_left() const { return autocast_left_; }
  void leave_autocast(AutocastState left) { autocast_left_ = std::move(left); }
  const Effects& effects() const { return effects_; }
  // By the program, so far.
  static std::size_t operators_called();
  // Keeps a write for later. False where the capture has ended: what a lock protects is written
  // while that is held.
  bool write(EffectKind kind, PyObject* owner, PyObject* key, PyObject* value, PyObject* place);
  bool append(PyObject* list, PyObject* value);
  void forbid_writes(bool forbidden) { writes_forbidden_ = forbidden; }
  // What was written at a place; an error of the given class where it was deleted.
  static PyObject* read_back(const Effects::Found& found, PyObject* missing_error, PyObject* key);
  // An iterator over it, or over this view of it, is about: where it is from outside, the capture
  // ends as soon as the program changes it.
  void note_iterated(PyObject* object);
  bool is_iterated(PyObject* object) const { return iterated_.count(object) != 0; }
  // Borrowed, or null with an error set.
  PyObject* changed_list(PyObject* list);
  // The list to look at in place of one from outside that the program has changed; borrowed, or
  // null, with an error set where the capture has ended.
  PyObject* seen_list(PyObject* object);

  guards::GuardProgram& guards() { return guards_; }
  const guards::GuardProgram& guards() const { return guards_; }
  std::vector<InputTensor>& inputs() { return inputs_; }

 private:
  void note_value(PyObject* value, SourceId source);
  std::vector<SourceId> sources_of_value(PyObject* value) const;
  void guard_identity_of_values(PyObject* a, PyObject* b);
  enum class Depth : std::uint8_t { kNone, kItems, kAll };
  struct Known {
    SourceId source = kNoSource;
    Depth depth = Depth::kNone;  // that is guarded
  };

  using SequenceCopies = std::unordered_map<PyObject*, cpython::Ref>;  // null: being made
  PyObject* copy_elements(PyObject* object, SequenceCopies& copies);
  PyObject* copy_list(PyObject* list);
  bool may_write();
  bool settle_effects();
  void guard_written();
  // As source_of, for tensors of the recording too.
  SourceId path_of(PyObject* object) const;
  PyObject* read_tensor(PyObject* object, SourceId source);
  PyObject* admit_tuple(PyObject* object, const char* giver, bool is_new);
  bool admit_children(PyObject* object, const char* giver);
  void know(PyObject* object, SourceId source);
  bool may_be_searched(PyObject* container, PyObject* key);
  bool expose_child(PyObject* child, SourceId source);
  bool expose_dict(PyObject* dict, SourceId source, std::vector<PyObject*>& out_children);
  bool expose_pieces(PyObject* object, SourceId source, std::vector<PyObject*>& out_children);
  bool expose_attributes(PyObject* object, SourceId source, std::vector<PyObject*>& out_children);
  bool expose_outside(PyObject* object, const Known& known, std::vector<PyObject*>& out_children);
  bool expose_function_of(PyObject* partial);
  bool expose_items_as_they_were(PyObject* object);

  guards::GuardProgram& guards_;
  Hand hand_;
  bool began_with_grad_, began_in_inference_ = false;
  bool defers_effects_ = false, writes_forbidden_ = false;
  std::optional<AutocastState> autocast_left_;
  Effects effects_;
  std::unordered_set<PyObject*> iterated_;
  std::string reason_;
  std::unordered_map<PyObject*, Known> known_;
  std::unordered_set<PyObject*> shared_, let_go_;
  std::unordered_map<PyObject*, SourceId> values_;  // ranges and devices from outside
  std::unordered_map<PyObject*, PyObject*> own_dicts_;
  std::unordered_map<PyObject*, SourceId> places_;  // dicts that were written
  // Numbers and texts from outside, of which there may be others of the same value.
  std::vector<std::pair<PyObject*, SourceId>> values_read_;
  std::vector<cpython::Ref> alive_;  // so that no address comes twice
  std::vector<InputTensor> inputs_;
  std::unordered_map<PyObject*, std::size_t> input_of_;    // by traced object
  std::unordered_map<PyObject*, std::size_t> real_input_;  // by real object
  std::size_t exposed_count_ = 0;
  std::vector<SourceId> identities_;
  std::unordered_set<SourceId> has_identity_;
  std::unordered_set<const void*> addresses_;
};

// Immutable, compared by value: what a guard of equality can hold.
bool is_primitive(PyObject* object);
// Named by its identity and the same in every call: classes, modules, dtypes, built-in functions.
bool is_fixed(PyObject* object);
// Whether an end of one runs code of the program.
PyObject* finalizer_name();
bool has_finalizer(PyTypeObject* type);

}  // namespace backplane::capture
