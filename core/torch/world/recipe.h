// How the value that a captured program returns is put together again around new tensors.
#pragma once

#include <Python.h>
//
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/status.h"
#include "core/torch/world/world.h"

namespace backplane::capture {

class Recipe {
 public:
  // Takes the returned value apart. kUnsupported, with the reason, for what cannot be made again.
  Status take(World& world, PyObject* returned);

  // The program's own tensors in it, in the order of make()'s `tensors`. Emptied.
  std::vector<at::Tensor> take_tensors() { return std::move(tensors_); }
  // What make() reads of the registers.
  const std::vector<SourceId>& sources() const { return sources_; }
  // A new reference, or null with a Python error set. `tensors`: borrowed Python tensors.
  PyObject* make(const guards::Registers& registers, std::span<PyObject* const> tensors) const;
  void show_refs(cpython::OwnedRefs& out) const;

 private:
  enum class Kind : std::uint8_t {
    kTensor,
    kConstant,
    kSource,
    kTuple,
    kNamedTuple,
    kStructure,
    kList,
    kSet,
    kDict,
    kInstance,
    kInstanceDict,  // of an object
    kMethod,        // function, object
    kCMethod,       // object; `object`: its class; `names`: the method's module, if any
    kReduced,       // arguments, perhaps a state; `object`: what makes it
    kDictIterator,  // a view; `index` items are taken already
    kFunction,      // closure, defaults, keyword defaults; `object`: one without
    kCell,
    kCellContent,  // cell, content: makes nothing new
  };
  // Pieces stand behind those that they are made of.
  struct Piece {
    Kind kind;
    std::uint32_t index = 0;         // kTensor: which; kSource: the source
    cpython::Ref object;             // kConstant: it; else the class
    std::vector<cpython::Ref> keys;  // kDict, kInstance: of the items
    std::vector<std::uint32_t> children;
    std::vector<cpython::Ref> names;  // kInstance, kTensor: in __dict__; children behind the items'
    std::vector<cpython::Ref> slots{};  // kInstance: that are filled; their children come last
    PyMethodDef* method = nullptr;      // kCMethod: the class of the object keeps it
  };

  Result<std::uint32_t> add(World& world, PyObject* object);
  Result<std::uint32_t> add_tensor(World& world, PyObject* object);
  Status add_items(World& world, PyObject* dict, std::vector<cpython::Ref>& keys, Piece& piece);
  Status add_attributes(World& world, PyObject* object, Piece& piece);
  Result<std::uint32_t> add_instance(World& world, PyObject* object);
  // What a frame holds in the middle, besides data. kUnsupported for all else.
  Result<std::uint32_t> add_running(World& world, PyObject* object);
  Result<std::uint32_t> add_dict_iterator(World& world, PyObject* object);
  Result<std::uint32_t> add_function(World& world, PyObject* object);
  static PyObject* make_running(const Piece& piece, std::span<const cpython::Ref> made);
  Result<std::uint32_t> finish(PyObject* object, Piece piece);
  static bool set_attributes(PyObject* object, const Piece& piece,
                             std::span<const cpython::Ref> made);
  static PyObject* make_piece(const Piece& piece, std::span<const cpython::Ref> made);

  std::vector<Piece> pieces_;
  std::vector<at::Tensor> tensors_;
  std::vector<SourceId> sources_;
  std::unordered_map<PyObject*, std::uint32_t> index_of_;
  std::unordered_set<PyObject*> open_;  // being taken apart
  std::vector<cpython::Ref> held_;      // made for taking apart: no address comes twice
};

}  // namespace backplane::capture
