// What a program under capture may see of the world outside, and how: every object from outside
// comes in through one door, which makes the guard; tensors become tensors of the recording there.
#pragma once

#include <Python.h>
//
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/torch/capture/shadows.h"
#include "core/torch/guards/guard_program.h"

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

  World(guards::GuardProgram& guards, Hand hand) : guards_(guards), hand_(std::move(hand)) {}

  // Ends the capture: the program's own handlers never see the error. The first reason stays.
  PyObject* stop(const std::string& reason);
  bool stopped() const { return !reason_.empty(); }
  const std::string& reason() const { return reason_; }

  // The door: `object`, borrowed, was found at `source`.
  PyObject* read(PyObject* object, SourceId source);
  // An object that is guarded by what led to it, such as the attribute of a class.
  PyObject* read_constant(PyObject* object);
  // What C code gave, stolen. An object that nobody but `owner_count` known owners holds is new,
  // and the program's own.
  PyObject* admit(PyObject* object, const char* giver, Py_ssize_t owner_count = 1);
  // The program made it.
  void own(PyObject* object);

  bool is_own(PyObject* object) const;
  // kNoSource for what is not from outside.
  SourceId source_of(PyObject* object) const;
  bool is_outside(PyObject* object) const { return source_of(object) != kNoSource; }
  // The program asks whether the two are one object.
  void guard_identity_of(PyObject* a, PyObject* b);
  bool is_input_tensor(PyObject* object) const { return input_of_.count(object) != 0; }

  // What the real tensor behind `traced`, one from outside, has under this name in its __dict__, or
  // null; guarded. A read may also stop.
  PyObject* read_own_attribute(PyObject* traced, PyObject* name);
  // What `descriptor`, of a C structure, gives for the real tensor.
  PyObject* read_of_input(PyObject* traced, PyObject* descriptor);
  // The program asks whether `object` is among others, by its address: all such stay distinct.
  void note_identity(PyObject* object);
  // The program looks for `object` in `container`, which compares it with what is inside.
  void note_search(PyObject* object, PyObject* container);
  // Once the program has ended: guards which objects are one, and that attributes which it set and
  // set back again are what they were. Stops where something set stays.
  bool settle();

  // Guards what a container from outside holds, at all depths: C code may look at it.
  bool expose(PyObject* object);
  // An own copy of a list or tuple from outside, with tensors of the recording.
  PyObject* copy_sequence(PyObject* object);

  guards::GuardProgram& guards() { return guards_; }
  Shadows& shadows() { return shadows_; }
  std::vector<InputTensor>& inputs() { return inputs_; }

 private:
  struct Known {
    SourceId source = kNoSource;
    bool exposed = false;
  };

  // As source_of, for tensors of the recording too.
  SourceId path_of(PyObject* object) const;
  PyObject* read_tensor(PyObject* object, SourceId source);
  PyObject* admit_tuple(PyObject* object, const char* giver, bool is_new);
  bool admit_children(PyObject* object, const char* giver);
  void know(PyObject* object, SourceId source);
  bool expose_child(PyObject* child, SourceId source);

  guards::GuardProgram& guards_;
  Hand hand_;
  std::string reason_;
  std::unordered_map<PyObject*, Known> known_;
  std::vector<cpython::Ref> alive_;  // so that no address comes twice
  std::vector<InputTensor> inputs_;
  std::unordered_map<PyObject*, std::size_t> input_of_;    // by traced object
  std::unordered_map<PyObject*, std::size_t> real_input_;  // by real object
  std::size_t exposed_count_ = 0;
  Shadows shadows_;
  std::vector<SourceId> identities_;
  std::unordered_set<SourceId> has_identity_;
};

// Immutable, compared by value: what a guard of equality can hold.
bool is_primitive(PyObject* object);
// Named by its identity and the same in every call: classes, modules, dtypes, built-in functions.
bool is_fixed(PyObject* object);

}  // namespace backplane::capture
