// Pieces of a recipe that a frame holds in the middle of its work: methods that are about to be
// called, iterators that are half consumed, functions and the cells that they share.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/torch/world/recipe.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

Status unsupported(PyObject* object, const char* why) {
  return Status(Code::kUnsupported,
                std::string("an object of class ") + Py_TYPE(object)->tp_name + " " + why);
}

// Written in C, and made again by what __reduce__ gives, which leaves them as they are.
constexpr std::array<std::string_view, 22> kReducible{"range_iterator",
                                                      "longrange_iterator",
                                                      "list_iterator",
                                                      "list_reverseiterator",
                                                      "tuple_iterator",
                                                      "str_iterator",
                                                      "str_ascii_iterator",
                                                      "enumerate",
                                                      "zip",
                                                      "map",
                                                      "filter",
                                                      "reversed",
                                                      "itertools.chain",
                                                      "itertools.count",
                                                      "itertools.repeat",
                                                      "itertools.islice",
                                                      "range",
                                                      "slice",
                                                      "functools.partial",
                                                      "operator.itemgetter",
                                                      "operator.attrgetter",
                                                      "operator.methodcaller"};

// The first object that it refers to.
PyObject* first_referent(PyObject* object) {
  PyObject* found = nullptr;
  Py_TYPE(object)->tp_traverse(
      object,
      [](PyObject* referent, void* out) {
        auto** first = static_cast<PyObject**>(out);
        if (!*first) *first = referent;
        return 0;
      },
      &found);
  return found;
}

// A tuple is one argument, too.
PyObject* call_with(PyObject* object, const char* method, PyObject* argument) {
  const Ref name = Ref::steal(PyUnicode_InternFromString(method));
  return name ? PyObject_CallMethodOneArg(object, name.get(), argument) : nullptr;
}

const char* view_of_iterator(PyTypeObject* type) {
  if (type == &PyDictIterKey_Type) return "keys";
  if (type == &PyDictIterValue_Type) return "values";
  return type == &PyDictIterItem_Type ? "items" : nullptr;
}

// Its length, items and iterators are the program's code.
bool is_program_instance(PyObject* object) {
  return PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE) != 0 &&
         (Py_TYPE(object)->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) == 0;
}

// Without what the program bound to it: closure, defaults, annotations.
Ref function_like(const PyFunctionObject* function) {
  Ref made = Ref::steal(PyFunction_NewWithQualName(function->func_code, function->func_globals,
                                                   function->func_qualname));
  if (!made) return made;
  auto* out = reinterpret_cast<PyFunctionObject*>(made.get());
  Py_XSETREF(out->func_name, Py_NewRef(function->func_name));
  Py_XSETREF(out->func_doc, Py_XNewRef(function->func_doc));
  return made;
}

}  // namespace

Result<std::uint32_t> Recipe::add_running(World& world, PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  const auto make = [&](Kind kind, PyObject* like,
                        std::initializer_list<PyObject*> children) -> Result<std::uint32_t> {
    Piece piece{kind, 0, Ref::borrow(like), {}, {}, {}};
    for (PyObject* child : children) {
      BP_ASSIGN_OR_RETURN(const std::uint32_t index, add(world, child));
      piece.children.push_back(index);
    }
    return finish(object, std::move(piece));
  };
  if (PyMethod_Check(object))
    return make(Kind::kMethod, nullptr, {PyMethod_GET_FUNCTION(object), PyMethod_GET_SELF(object)});
  if (PyCFunction_CheckExact(object) && PyCFunction_GET_SELF(object)) {
    PyObject* self = PyCFunction_GET_SELF(object);
    const auto* method = reinterpret_cast<PyCFunctionObject*>(object);
    BP_ASSIGN_OR_RETURN(const std::uint32_t made,
                        make(Kind::kCMethod, reinterpret_cast<PyObject*>(Py_TYPE(self)), {self}));
    pieces_[made].method = method->m_ml;
    if (method->m_module) pieces_[made].names.push_back(Ref::borrow(method->m_module));
    return made;
  }
  if (PyFunction_Check(object)) return add_function(world, object);
  if (PyCell_Check(object)) {
    BP_ASSIGN_OR_RETURN(const std::uint32_t cell, make(Kind::kCell, nullptr, {}));
    PyObject* content = PyCell_GET(object);
    if (!content) return cell;
    // A function in its own closure leads back to the cell, which is there by now.
    open_.erase(object);
    Result<std::uint32_t> value = add(world, content);
    open_.insert(object);
    if (!value.ok()) return value;
    pieces_.push_back({Kind::kCellContent, 0, {}, {}, {cell, *value}, {}});
    return cell;
  }
  if (view_of_iterator(type)) return add_dict_iterator(world, object);
  if (std::ranges::find(kReducible, std::string_view(type->tp_name)) != kReducible.end()) {
    const Ref reduced = Ref::steal(PyObject_CallMethod(object, "__reduce__", nullptr));
    if (!reduced || !PyTuple_Check(reduced.get())) {
      PyErr_Clear();
      return unsupported(object, "cannot be copied");
    }
    held_.push_back(reduced);
    const auto part = [&](Py_ssize_t i) { return PyTuple_GET_ITEM(reduced.get(), i); };
    const Py_ssize_t count = PyTuple_GET_SIZE(reduced.get());
    for (Py_ssize_t i = 0; PyTuple_Check(part(1)) && i < PyTuple_GET_SIZE(part(1)); ++i)
      if (is_program_instance(PyTuple_GET_ITEM(part(1), i)))
        return unsupported(object, "would ask the program's own class anew");
    if (count > 2 && part(2) != Py_None) return make(Kind::kReduced, part(0), {part(1), part(2)});
    return make(Kind::kReduced, part(0), {part(1)});
  }
  return unsupported(object, "that the program made cannot be made again");
}

// As many items are taken as the length that is left says; the keys are the same since it began.
Result<std::uint32_t> Recipe::add_dict_iterator(World& world, PyObject* object) {
  PyObject* dict = first_referent(object);
  const Py_ssize_t left = PyObject_LengthHint(object, -1);
  if (!dict || !PyDict_CheckExact(dict) || left < 0) {
    PyErr_Clear();
    return unsupported(object, "that is used up cannot be made again");
  }
  Piece piece{Kind::kDictIterator,
              static_cast<std::uint32_t>(PyDict_GET_SIZE(dict) - left),
              Ref::steal(PyUnicode_FromString(view_of_iterator(Py_TYPE(object)))),
              {},
              {},
              {}};
  BP_ASSIGN_OR_RETURN(const std::uint32_t child, add(world, dict));
  piece.children.push_back(child);
  return finish(object, std::move(piece));
}

Result<std::uint32_t> Recipe::add_function(World& world, PyObject* object) {
  const auto* function = reinterpret_cast<PyFunctionObject*>(object);
  if (function->func_dict && PyDict_GET_SIZE(function->func_dict) != 0)
    return unsupported(object, "with attributes cannot be made again");
  Piece piece{Kind::kFunction, 0, function_like(function), {}, {}, {}};
  if (!piece.object) {
    PyErr_Clear();
    return unsupported(object, "cannot be made again");
  }
  const auto* like = reinterpret_cast<PyFunctionObject*>(piece.object.get());
  if (like->func_module != function->func_module)
    return unsupported(object, "of another module than its own cannot be made again");
  if (function->func_doc && !is_primitive(function->func_doc))
    return unsupported(object, "whose __doc__ is no text cannot be made again");
  for (PyObject* part : {function->func_closure, function->func_defaults, function->func_kwdefaults,
                         function->func_annotations}) {
    BP_ASSIGN_OR_RETURN(const std::uint32_t child, add(world, part ? part : Py_None));
    piece.children.push_back(child);
  }
  return finish(object, std::move(piece));
}

PyObject* Recipe::make_running(const Piece& piece, std::span<const Ref> made) {
  const auto child = [&](std::size_t i) { return made[piece.children[i]].get(); };
  PyObject* like = piece.object.get();
  switch (piece.kind) {
    case Kind::kMethod:
      return PyMethod_New(child(0), child(1));
    case Kind::kCMethod:
      return PyCMethod_New(piece.method, child(0),
                           piece.names.empty() ? nullptr : piece.names.front().get(), nullptr);
    case Kind::kReduced: {
      Ref object = Ref::steal(PyObject_Call(like, child(0), nullptr));
      if (!object || piece.children.size() < 2) return object.release();
      const Ref done = Ref::steal(call_with(object.get(), "__setstate__", child(1)));
      return done ? object.release() : nullptr;
    }
    case Kind::kDictIterator: {
      const Ref view = Ref::steal(PyObject_CallMethodNoArgs(child(0), like));
      Ref iterator = view ? Ref::steal(PyObject_GetIter(view.get())) : Ref();
      for (std::uint32_t i = 0; iterator && i < piece.index; ++i)
        if (!Ref::steal(PyIter_Next(iterator.get()))) return nullptr;
      return iterator.release();
    }
    case Kind::kFunction: {
      Ref copy = function_like(reinterpret_cast<PyFunctionObject*>(like));
      if (!copy) return nullptr;
      auto* out = reinterpret_cast<PyFunctionObject*>(copy.get());
      const auto set = [&](PyObject*& field, PyObject* value) {
        if (value != Py_None) Py_XSETREF(field, Py_NewRef(value));
      };
      set(out->func_closure, child(0));
      set(out->func_defaults, child(1));
      set(out->func_kwdefaults, child(2));
      set(out->func_annotations, child(3));
      return copy.release();
    }
    case Kind::kCell:
      return PyCell_New(nullptr);
    case Kind::kCellContent:
      if (PyCell_Set(child(0), child(1)) != 0) return nullptr;
      return Py_NewRef(Py_None);
    default:
      return nullptr;
  }
}

}  // namespace backplane::capture
