#include "core/torch/world/recipe.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

#include "core/torch/guards/content.h"
#include "core/torch/record/value_tensor.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

Status unsupported(PyObject* object) {
  return Status(Code::kUnsupported, std::string("an object of class ") + Py_TYPE(object)->tp_name +
                                        " that the program made cannot be made again");
}

// The names of the instance's __slots__ that are filled, in `out_names`. False where another
// attribute of a class hides one.
bool find_slots(PyObject* object, std::vector<PyObject*>& out_names) {
  for (PyTypeObject* base = Py_TYPE(object); PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE);
       base = base->tp_base) {
    Py_ssize_t position = 0;
    PyObject *name, *value;
    while (PyDict_Next(base->tp_dict, &position, &name, &value)) {
      if (Py_TYPE(value) != &PyMemberDescr_Type) continue;
      if (_PyType_Lookup(Py_TYPE(object), name) != value) return false;
      const Ref filled = Ref::steal(PyObject_GenericGetAttr(object, name));
      if (filled)
        out_names.push_back(name);
      else
        PyErr_Clear();
    }
  }
  return true;
}

// An instance whose whole state is its __dict__, its __slots__ and, perhaps, items of a dict.
bool is_plain_instance(PyObject* object) {
  PyTypeObject* base = Py_TYPE(object);
  for (; PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE); base = base->tp_base)
    if (!guards::is_made_by_python(base)) return false;
  if (std::strcmp(base->tp_name, "types.SimpleNamespace") == 0) return true;
  return Py_TYPE(object) != base &&
         (base == &PyBaseObject_Type || base == &PyDict_Type || base == &PyODict_Type);
}

bool is_named_tuple(PyObject* object) {
  return PyTuple_Check(object) && PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE) &&
         PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "_fields");
}

// A C structure that PyTorch's operators return, such as torch.return_types.max.
bool is_structure(PyObject* object) {
  return PyTuple_Check(object) &&
         std::strncmp(Py_TYPE(object)->tp_name, "torch.return_types.", 19) == 0;
}

Status unsupported_address() {
  return {Code::kUnsupported, "the address of an object, which is another in the next call"};
}

}  // namespace

Status Recipe::take(World& world, PyObject* returned) {
  BP_ASSIGN_OR_RETURN([[maybe_unused]] const std::uint32_t root, add(world, returned));
  index_of_.clear();
  held_.clear();
  for (const Piece& piece : pieces_)
    if (piece.kind == Kind::kSource) sources_.push_back(piece.index);
  return {};
}

void Recipe::show_refs(cpython::OwnedRefs& out) const {
  for (const Piece& piece : pieces_) {
    out.show(piece.object);
    out.show(piece.keys);
    out.show(piece.names);
    out.show(piece.slots);
  }
  out.show(held_);
}

Result<std::uint32_t> Recipe::finish(PyObject* object, Piece piece) {
  const auto index = static_cast<std::uint32_t>(pieces_.size());
  pieces_.push_back(std::move(piece));
  index_of_[object] = index;
  return index;
}

Result<std::uint32_t> Recipe::add_tensor(World& world, PyObject* object) {
  for (const InputTensor& input : world.inputs()) {
    if (input.traced.get() != object && input.real.get() != object) continue;
    Piece piece{Kind::kSource, input.source, {}, {}, {}, {}};
    return finish(object, std::move(piece));
  }
  if (!world.is_own(object)) return unsupported(object);
  Piece piece{Kind::kTensor, static_cast<std::uint32_t>(tensors_.size()), {}, {}, {}, {}};
  if (!THPVariable_CheckExact(object)) return unsupported(object);
  // Its memory is that of what it is the conjugate of.
  if (record::find_pending(THPVariable_Unpack(object)))
    return Status(Code::kUnsupported, "a tensor whose conjugation or negation is pending");
  if (World::is_too_deep() || !open_.insert(object).second) return unsupported(object);
  tensors_.push_back(THPVariable_Unpack(object));
  BP_RETURN_IF_ERROR(add_attributes(world, object, piece));
  open_.erase(object);
  return finish(object, std::move(piece));
}

Status Recipe::add_items(World& world, PyObject* dict, std::vector<Ref>& keys, Piece& piece) {
  const Ref ordered = guards::ordered_keys(dict);
  if (!ordered) return unsupported(dict);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ordered.get()); ++i) {
    PyObject* key = PyList_GET_ITEM(ordered.get(), i);
    if (!is_primitive(key) && !is_fixed(key))
      return Status(Code::kUnsupported, "a dict with unusual keys cannot be made again");
    if (world.is_address(key)) return unsupported_address();
    PyObject* value = PyDict_GetItemWithError(dict, key);
    if (!value) return unsupported(dict);
    BP_ASSIGN_OR_RETURN(const std::uint32_t child, add(world, value));
    keys.push_back(Ref::borrow(key));
    piece.children.push_back(child);
  }
  return {};
}

Status Recipe::add_attributes(World& world, PyObject* object, Piece& piece) {
  PyObject** attributes = _PyObject_GetDictPtr(object);
  return attributes && *attributes ? add_items(world, *attributes, piece.names, piece) : Status{};
}

Result<std::uint32_t> Recipe::add_instance(World& world, PyObject* object) {
  Piece piece{
      Kind::kInstance, 0, Ref::borrow(reinterpret_cast<PyObject*>(Py_TYPE(object))), {}, {}, {}};
  if (PyDict_Check(object)) BP_RETURN_IF_ERROR(add_items(world, object, piece.keys, piece));
  BP_RETURN_IF_ERROR(add_attributes(world, object, piece));
  std::vector<PyObject*> slots;
  if (!find_slots(object, slots)) return unsupported(object);
  for (PyObject* name : slots) {
    const Ref value = Ref::steal(PyObject_GenericGetAttr(object, name));
    if (!value) return unsupported(object);
    BP_ASSIGN_OR_RETURN(const std::uint32_t child, add(world, value.get()));
    piece.slots.push_back(Ref::borrow(name));
    piece.children.push_back(child);
  }
  return finish(object, std::move(piece));
}

Result<std::uint32_t> Recipe::add(World& world, PyObject* object) {
  if (const auto found = index_of_.find(object); found != index_of_.end()) return found->second;
  if (guards::is_tensor(object)) return add_tensor(world, object);
  const auto finish_as_constant = [&] {
    return finish(object, {Kind::kConstant, 0, Ref::borrow(object), {}, {}, {}});
  };
  if (world.is_address(object)) return unsupported_address();
  if (is_primitive(object) || is_fixed(object) || world.is_shared(object))
    return finish_as_constant();
  // A value of the same content may be another object in the next call.
  if (const SourceId source = world.place_of(object); source != kNoSource) {
    world.guards().load(source);
    return finish(object, {Kind::kSource, source, {}, {}, {}, {}});
  }
  if (THPDevice_Check(object) || (world.is_own(object) && guards::is_immutable_value(object) &&
                                  guards::base_in_c(Py_TYPE(object)) == Py_TYPE(object)))
    return finish_as_constant();
  if (World::is_too_deep())
    return Status(Code::kUnsupported, "an object that is nested too deep cannot be made again");
  if (!open_.insert(object).second) return unsupported(object);
  Result<std::uint32_t> made = unsupported(object);
  const Ref type = Ref::borrow(reinterpret_cast<PyObject*>(Py_TYPE(object)));
  if (PyList_CheckExact(object) || PyTuple_CheckExact(object) || is_named_tuple(object) ||
      is_structure(object)) {
    const Kind kind = PyList_CheckExact(object)    ? Kind::kList
                      : PyTuple_CheckExact(object) ? Kind::kTuple
                      : is_structure(object)       ? Kind::kStructure
                                                   : Kind::kNamedTuple;
    Piece piece{kind, 0, type, {}, {}, {}};
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(object);
    for (Py_ssize_t i = 0; i < count; ++i) {
      BP_ASSIGN_OR_RETURN(const std::uint32_t child,
                          add(world, PySequence_Fast_GET_ITEM(object, i)));
      piece.children.push_back(child);
    }
    BP_RETURN_IF_ERROR(add_attributes(world, object, piece));
    made = finish(object, std::move(piece));
  } else if (std::strcmp(Py_TYPE(object)->tp_name, "torch.Size") == 0) {
    made = finish_as_constant();
  } else if (PyObject* owner = world.owner_of(object)) {
    BP_ASSIGN_OR_RETURN(const std::uint32_t child, add(world, owner));
    made = finish(object, {Kind::kInstanceDict, 0, {}, {}, {child}, {}});
  } else if (PyDict_CheckExact(object) || Py_TYPE(object) == &PyODict_Type) {
    Piece piece{Kind::kDict, 0, type, {}, {}, {}};
    BP_RETURN_IF_ERROR(add_items(world, object, piece.keys, piece));
    BP_RETURN_IF_ERROR(add_attributes(world, object, piece));
    made = finish(object, std::move(piece));
  } else if (PySet_CheckExact(object) || PyFrozenSet_CheckExact(object)) {
    Piece piece{Kind::kSet, 0, type, {}, {}, {}};
    Py_ssize_t position = 0;
    PyObject* key;
    Py_hash_t hash;
    while (_PySet_NextEntry(object, &position, &key, &hash)) {
      BP_ASSIGN_OR_RETURN(const std::uint32_t child, add(world, key));
      if (pieces_[child].kind != Kind::kConstant) return unsupported(object);
      piece.children.push_back(child);
    }
    made = finish(object, std::move(piece));
  } else if (is_plain_instance(object)) {
    made = add_instance(world, object);
  } else {
    made = add_running(world, object);
  }
  open_.erase(object);
  return made;
}

PyObject* Recipe::make_piece(const Piece& piece, std::span<const Ref> made) {
  const auto child = [&](std::size_t i) { return made[piece.children[i]].get(); };
  const auto count =
      static_cast<Py_ssize_t>(piece.children.size() - piece.names.size() - piece.slots.size());
  auto* type = reinterpret_cast<PyTypeObject*>(piece.object.get());
  switch (piece.kind) {
    case Kind::kTensor:
    case Kind::kSource:
      return nullptr;  // make() has them
    case Kind::kConstant:
      return Py_NewRef(piece.object.get());
    case Kind::kList: {
      PyObject* list = PyList_New(count);
      for (Py_ssize_t i = 0; list && i < count; ++i)
        PyList_SET_ITEM(list, i, Py_NewRef(child(static_cast<std::size_t>(i))));
      return list;
    }
    case Kind::kTuple:
    case Kind::kNamedTuple:
    case Kind::kStructure: {
      Ref tuple = Ref::steal(PyTuple_New(count));
      for (Py_ssize_t i = 0; tuple && i < count; ++i)
        PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(child(static_cast<std::size_t>(i))));
      if (!tuple || piece.kind == Kind::kTuple) return tuple.release();
      const Ref arguments = Ref::steal(PyTuple_Pack(1, tuple.get()));
      if (!arguments) return nullptr;
      Ref object = Ref::steal(piece.kind == Kind::kNamedTuple
                                  ? PyTuple_Type.tp_new(type, arguments.get(), nullptr)
                                  : PyObject_Call(piece.object.get(), arguments.get(), nullptr));
      return object && set_attributes(object.get(), piece, made) ? object.release() : nullptr;
    }
    case Kind::kInstanceDict:
      return PyObject_GenericGetDict(child(0), nullptr);
    case Kind::kSet: {
      const Ref list = Ref::steal(PyList_New(0));
      for (std::size_t i = 0; i < piece.children.size(); ++i)
        if (PyList_Append(list.get(), child(i)) != 0) return nullptr;
      return type == &PySet_Type ? PySet_New(list.get()) : PyFrozenSet_New(list.get());
    }
    case Kind::kDict:
    case Kind::kInstance: {
      PyTypeObject* base = type;
      while (PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE)) base = base->tp_base;
      const Ref nothing = Ref::steal(PyTuple_New(0));
      Ref object = Ref::steal(base->tp_new(type, nothing.get(), nullptr));
      if (!object) return nullptr;
      for (std::size_t i = 0; i < piece.keys.size(); ++i) {
        const int status = base == &PyODict_Type
                               ? PyODict_SetItem(object.get(), piece.keys[i].get(), child(i))
                               : PyDict_SetItem(object.get(), piece.keys[i].get(), child(i));
        if (status != 0) return nullptr;
      }
      return set_attributes(object.get(), piece, made) ? object.release() : nullptr;
    }
    default:
      return make_running(piece, made);
  }
}

bool Recipe::set_attributes(PyObject* object, const Piece& piece, std::span<const Ref> made) {
  const std::uint32_t* child =
      piece.children.data() + piece.children.size() - piece.names.size() - piece.slots.size();
  for (const Ref& name : piece.names) {
    PyObject* value = made[*child++].get();
    // A property of this name, say, would take the value in the place of __dict__.
    PyObject* of_class = _PyType_Lookup(Py_TYPE(object), name.get());
    const bool is_taken = of_class && Py_TYPE(of_class)->tp_descr_set;
    const Ref dict = is_taken || !PyUnicode_Check(name.get())
                         ? Ref::steal(PyObject_GenericGetDict(object, nullptr))
                         : Ref();
    const int status = dict ? PyDict_SetItem(dict.get(), name.get(), value)
                            : PyObject_GenericSetAttr(object, name.get(), value);
    if (status != 0) return false;
  }
  for (const Ref& name : piece.slots)
    if (PyObject_GenericSetAttr(object, name.get(), made[*child++].get()) != 0) return false;
  return true;
}

PyObject* Recipe::make(const guards::Registers& registers,
                       std::span<PyObject* const> tensors) const {
  std::vector<Ref> made;
  made.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    if (piece.kind == Kind::kTensor) {
      made.push_back(Ref::borrow(tensors[piece.index]));
      if (!set_attributes(made.back().get(), piece, made)) return nullptr;
    } else if (piece.kind == Kind::kSource) {
      made.push_back(Ref::borrow(registers.values[piece.index]));
    } else {
      made.push_back(Ref::steal(make_piece(piece, made)));
    }
    if (!made.back()) return nullptr;
  }
  return made.back().release();
}

}  // namespace backplane::capture
