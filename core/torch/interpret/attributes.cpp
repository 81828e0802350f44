// Attributes as CPython finds them, step by step, because each step is something to guard.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/cpython/bytecode/class_dict.h"
#include "core/torch/guards/content.h"
#include "core/torch/interpret/interpreter.h"
#include "core/torch/record/layout.h"
#include "core/torch/record/value_tensor.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

// Of PyTorch's own attributes of a tensor: those that the tensor of the recording has as well,
// beside all of `is_...`. Any other is state of autograd, of memory or of Python, or new in
// PyTorch.
constexpr std::array<std::string_view, 17> kRecordedTensorState{"T",
                                                                "H",
                                                                "mT",
                                                                "mH",
                                                                "real",
                                                                "imag",
                                                                "data",
                                                                "name",
                                                                "shape",
                                                                "ndim",
                                                                "itemsize",
                                                                "dtype",
                                                                "layout",
                                                                "device",
                                                                "nbytes",
                                                                "requires_grad",
                                                                "_has_symbolic_sizes_strides"};

// Of what a tensor has from elsewhere: what the tensor of the recording does not have.
constexpr std::array<std::string_view, 3> kOutsideTensorState{"__dict__", "data_ptr",
                                                              "register_hook"};

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

bool is_data_descriptor(PyObject* descriptor) {
  return Py_TYPE(descriptor)->tp_descr_get && Py_TYPE(descriptor)->tp_descr_set;
}

bool is_outside_tensor_state(std::string_view name, PyObject* descriptor) {
  static const PyTypeObject* const base = find_type("torch._C", "TensorBase");
  const bool is_of_pytorch =
      descriptor && Py_TYPE(descriptor) == &PyGetSetDescr_Type && PyDescr_TYPE(descriptor) == base;
  if (!is_of_pytorch)
    return std::ranges::find(kOutsideTensorState, name) != kOutsideTensorState.end();
  return !name.starts_with("is_") &&
         std::ranges::find(kRecordedTensorState, name) == kRecordedTensorState.end();
}

// The class's own way to find attributes, where it is written in Python; else null.
PyObject* own_finder(PyTypeObject* type) {
  static PyObject* const name = interned("__getattribute__");
  PyObject* finder = _PyType_Lookup(type, name);
  return finder && PyFunction_Check(finder) ? finder : nullptr;
}

// Whether attributes are found as `object` finds them, but for a __getattr__.
bool finds_generically(PyTypeObject* type) {
  if (type->tp_getattro == PyObject_GenericGetAttr ||
      type->tp_getattro == PyModule_Type.tp_getattro)
    return true;
  static PyObject* const name = interned("__getattribute__");
  static PyObject* const of_module = _PyType_Lookup(&PyModule_Type, name);
  PyObject* own = _PyType_Lookup(type, name);
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || !own) return false;
  if (own == of_module) return true;
  // Of object, dict, list: each has a wrapper of the same function.
  return Py_TYPE(own) == &PyWrapperDescr_Type &&
         reinterpret_cast<PyWrapperDescrObject*>(own)->d_wrapped ==
             reinterpret_cast<void*>(PyObject_GenericGetAttr);
}

// torch.ops, a library in it, an operator in that: each looks for what is asked of it once and
// keeps it as an attribute, which programs that are called again find.
bool keeps_operators(PyTypeObject* type) {
  static const std::array<PyTypeObject*, 3> kinds = [] {
    std::array<PyTypeObject*, 3> found{};
    constexpr std::array kNames{"_Ops", "_OpNamespace", "OpOverloadPacket"};
    for (std::size_t i = 0; i < kNames.size(); ++i) found[i] = find_type("torch._ops", kNames[i]);
    return found;
  }();
  return std::ranges::find(kinds, type) != kinds.end();
}

// Of the Python error that is set.
template <class Change>
void change_error(const Change& change) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value) change(value);
  PyErr_Restore(type, value, trace);
}

// As PyObject_GetAttr, which tells the error whose attribute it was.
void note_missing(PyObject* owner, PyObject* name) {
  change_error([&](PyObject* value) {
    if (!PyErr_GivenExceptionMatches(value, PyExc_AttributeError)) return;
    auto* error = reinterpret_cast<PyAttributeErrorObject*>(value);
    if (error->name || error->obj) return;
    error->name = Py_NewRef(name);
    error->obj = Py_NewRef(owner);
  });
}

}  // namespace

PyObject* Interpreter::attribute(PyObject* owner, PyObject* name) {
  PyObject* const found = found_attribute(owner, name);
  if (!found && !world_.stopped() && PyErr_ExceptionMatches(PyExc_AttributeError))
    note_missing(owner, name);
  return found;
}

PyObject* Interpreter::found_attribute(PyObject* owner, PyObject* name) {
  if (world_.stopped()) return world_.stop("");
  if (world_.is_too_deep()) return world_.stop("the program's data is too deep for the C stack");
  PyTypeObject* type = Py_TYPE(owner);
  if (guards::is_tensor(owner)) return tensor_attribute(owner, name);
  if (PyType_Check(owner)) return class_attribute(owner, name);
  if (type == &PySuper_Type) return super_attribute(owner, name);
  if (is_primitive(owner) || is_fixed(owner) ||
      (!world_.is_outside(owner) && !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)))
    if (!PyModule_Check(owner))
      return world_.admit(PyObject_GetAttr(owner, name), "an attribute",
                          world_.is_own(owner) ? 2 : 1);  // its owner may hold it too
  if (PyMethod_Check(owner) || !finds_generically(type)) {
    if (PyMethod_Check(owner) && world_.is_outside(owner)) {
      const SourceId source = world_.source_of(owner);
      if (text_of(name) == "__self__")
        return world_.read(PyMethod_GET_SELF(owner),
                           world_.guards().sources().add(SourceKind::kMethodSelf, source, nullptr));
      const Ref function = Ref::steal(
          world_.read(PyMethod_GET_FUNCTION(owner),
                      world_.guards().sources().add(SourceKind::kMethodFunction, source, nullptr)));
      if (!function || text_of(name) == "__func__") return Py_XNewRef(function.get());
      return attribute(function.get(), name);
    }
    if (!world_.is_outside(owner))
      return world_.admit(PyObject_GetAttr(owner, name), "an attribute");
    PyObject* finder = own_finder(type);
    if (!finder)
      return world_.stop(std::string("class ") + type->tp_name + " finds attributes its own way");
    return found_by(finder, owner, name);
  }
  return instance_attribute(owner, name);
}

PyObject* Interpreter::special_method(PyObject* object, PyObject* name) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject* found = _PyType_Lookup(type, name);
  const bool is_program =
      PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && !guards::is_tensor(object);
  if (is_program) world_.guards().guard_type_attribute(type, name, found);
  if (!found) return nullptr;
  return is_program ? bind(found, object, type) : attribute(object, name);
}

PyObject* Interpreter::found_by(PyObject* finder, PyObject* owner, PyObject* name) {
  static PyObject* const finder_name = interned("__getattribute__");
  world_.guards().guard_type_attribute(Py_TYPE(owner), finder_name, finder);
  const Ref known = Ref::steal(world_.read_constant(finder));
  PyObject* arguments[2] = {owner, name};
  PyObject* found = known ? call(known.get(), arguments, 2, nullptr) : nullptr;
  if (found || world_.stopped() || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  return missing_attribute(owner, name);
}

PyObject* Interpreter::tensor_attribute(PyObject* tensor, PyObject* name) {
  PyTypeObject* type = Py_TYPE(tensor);
  const std::string_view text = text_of(name);
  const bool is_input = world_.is_input_tensor(tensor);
  if (text == "grad" && is_input) return world_.read_of_input(tensor, _PyType_Lookup(type, name));
  PyObject* descriptor = _PyType_Lookup(type, name);
  if (is_outside_tensor_state(text, descriptor))
    return world_.stop("the program reads ." + std::string(text) + " of a tensor");
  if (!descriptor && is_input)
    if (PyObject* found = world_.read_own_attribute(tensor, name); found || world_.stopped())
      return found;
  world_.guards().guard_type_attribute(type, name, descriptor);
  if (descriptor && PyFunction_Check(descriptor)) return bind(descriptor, tensor, type);
  return world_.admit(PyObject_GetAttr(tensor, name), "an attribute of a tensor");
}

bool Interpreter::knows_fact(std::string_view method, PyObject* tensor) const {
  if (method == "is_conj" || method == "is_neg" || method == "resolve_conj" ||
      method == "resolve_neg")
    return !record::find_pending(THPVariable_Unpack(tensor));
  // The tensors of the recording are none of the mode's, whose views of its own are no views.
  if (world_.began_in_inference() && (method == "is_inference" || method == "_is_view"))
    return false;
  if (method == "_is_view" || method == "is_inference" || method == "_is_zerotensor")
    return !world_.is_input_tensor(tensor);
  if (method == "storage_offset" && record::is_written(THPVariable_Unpack(tensor))) return false;
  if (method == "stride" || method == "is_contiguous" || method == "storage_offset" ||
      method == "dim_order")
    return record::lies_as_in_program(THPVariable_Unpack(tensor));
  return true;
}

PyObject* Interpreter::bind(PyObject* descriptor, PyObject* owner, PyTypeObject* type) {
  PyTypeObject* kind = Py_TYPE(descriptor);
  if (kind == &PyFunction_Type) {
    const Ref function = Ref::steal(world_.read_constant(descriptor));
    if (!function) return nullptr;
    Ref method = Ref::steal(PyMethod_New(descriptor, owner));
    if (method) world_.own(method.get());
    return method.release();
  }
  if (kind == &PyProperty_Type) {
    const Ref getter = Ref::steal(PyObject_GetAttrString(descriptor, "fget"));
    if (!getter) return nullptr;
    if (getter.get() == Py_None)
      return kind->tp_descr_get(descriptor, owner, reinterpret_cast<PyObject*>(type));
    const Ref known = Ref::steal(world_.read_constant(getter.get()));
    return known ? call(known.get(), &owner, 1, nullptr) : nullptr;
  }
  if (kind == &PyStaticMethod_Type || kind == &PyClassMethod_Type) {
    const Ref inner = Ref::steal(PyObject_GetAttrString(descriptor, "__func__"));
    const Ref known = inner ? Ref::steal(world_.read_constant(inner.get())) : Ref();
    if (!known) return nullptr;
    if (kind == &PyStaticMethod_Type) return Py_NewRef(known.get());
    Ref method =
        Ref::steal(kind->tp_descr_get(descriptor, owner, reinterpret_cast<PyObject*>(type)));
    if (method) world_.own(method.get());
    return method.release();
  }
  if (!kind->tp_descr_get) return world_.read_constant(descriptor);
  const bool is_slot = !guards::is_made_by_python(kind);
  const bool is_method = kind == &PyMethodDescr_Type || kind == &PyWrapperDescr_Type ||
                         kind == &PyClassMethodDescr_Type;
  if (!is_slot) {  // a descriptor written in Python
    const Ref known = Ref::steal(world_.read_constant(descriptor));
    if (!known) return nullptr;
  }
  if (kind == &PyMemberDescr_Type) {
    const Effects::Found written = world_.effects().find(
        owner, reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_common.d_name);
    if (written.value) return Py_NewRef(written.value);
  }
  if (PyCell_Check(owner) && kind == &PyGetSetDescr_Type)  // cell_contents
    if (const Effects::Found written = world_.effects().find(owner, nullptr); written.found) {
      if (!written.value) PyErr_SetString(PyExc_ValueError, "Cell is empty");
      return Py_XNewRef(written.value);
    }
  const TakerScope scope(*this, is_slot ? Taker::kReader : Taker::kInterpreter);
  const SourceId source = world_.source_of(owner);
  Ref value = Ref::steal(kind->tp_descr_get(descriptor, owner, reinterpret_cast<PyObject*>(type)));
  if (!value) {
    if (is_slot && source != kNoSource) world_.guards().guard_empty_slot(source, descriptor);
    return nullptr;
  }
  if (is_method) {
    world_.own(value.get());
    return value.release();
  }
  if (kind == &PyGetSetDescr_Type) {
    const std::string_view name =
        reinterpret_cast<PyGetSetDescrObject*>(descriptor)->d_getset->name;
    if (name == "__dict__") {
      if (source != kNoSource)
        return world_.read(
            value.get(), world_.guards().sources().add(SourceKind::kInstanceDict, source, nullptr));
      world_.own_dict(value.get(), owner);
      return value.release();
    }
    if (name == "__class__") return world_.read_constant(value.get());
  }
  if (is_slot && source != kNoSource)
    return world_.read(value.get(),
                       world_.guards().sources().add(SourceKind::kSlot, source, descriptor));
  return world_.admit(value.release(), "a descriptor", world_.is_own(owner) ? 2 : 1);
}

PyObject* Interpreter::class_attribute(PyObject* owner, PyObject* name) {
  auto* type = reinterpret_cast<PyTypeObject*>(owner);
  PyTypeObject* meta = Py_TYPE(owner);
  guards::GuardProgram& guards = world_.guards();
  PyObject* of_meta = _PyType_Lookup(meta, name);
  if (meta != &PyType_Type) {
    if (PyObject* finder = own_finder(meta)) return found_by(finder, owner, name);
    guards.guard_type_attribute(meta, name, of_meta);
  }
  if (of_meta && is_data_descriptor(of_meta)) {
    static PyObject* const annotations = interned("__annotations__");
    if (name == annotations && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) &&
        !PyDict_Contains(cpython::dict_of_class(type), annotations))
      return world_.stop("the program asks for annotations, which their class makes then");
    const Ref value = Ref::steal(PyObject_GetAttr(owner, name));
    // Its name, bases and such: of a class of C as fixed as it is.
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && Py_TYPE(of_meta) == &PyGetSetDescr_Type) {
      const SourceId of_class = guards.sources().add(SourceKind::kConstant, kNoSource, owner);
      if (value)
        return world_.read(value.get(), guards.sources().add(SourceKind::kSlot, of_class, of_meta));
      guards.guard_empty_slot(of_class, of_meta);
    }
    if (!value) return nullptr;
    if (!is_primitive(value.get()) && !PyTuple_Check(value.get()))
      return world_.read_constant(value.get());
    world_.own(value.get());
    return Py_NewRef(value.get());
  }
  PyObject* found = _PyType_Lookup(type, name);
  guards.guard_type_attribute(type, name, found);
  if (found) {
    PyTypeObject* kind = Py_TYPE(found);
    if (kind == &PyFunction_Type || !kind->tp_descr_get) return world_.read_constant(found);
    if (kind == &PyStaticMethod_Type || kind == &PyClassMethod_Type)
      return bind(found, owner, type);
    const TakerScope scope(*this, Taker::kInterpreter);
    Ref value = Ref::steal(kind->tp_descr_get(found, nullptr, owner));
    if (!value) return nullptr;
    if (value.get() == found) return world_.read_constant(found);
    return world_.admit(value.release(), "a descriptor");
  }
  if (of_meta) return bind(of_meta, owner, meta);
  return missing_attribute(owner, name);
}

// The bases behind the named class, each asked and guarded in turn.
PyObject* Interpreter::super_attribute(PyObject* super, PyObject* name) {
  if (text_of(name) == "__class__")  // its own
    return world_.read_constant(reinterpret_cast<PyObject*>(&PySuper_Type));
  const Ref start = Ref::steal(PyObject_GetAttrString(super, "__thisclass__"));
  const Ref object_type = Ref::steal(PyObject_GetAttrString(super, "__self_class__"));
  if (!start || !object_type) return nullptr;
  if (PyType_Check(object_type.get())) {
    auto* own_type = reinterpret_cast<PyTypeObject*>(object_type.get());
    world_.guards().guard_type_attribute(own_type, name, _PyType_Lookup(own_type, name));
    PyObject* order = own_type->tp_mro;
    Py_ssize_t i = 0;
    const Py_ssize_t count = order ? PyTuple_GET_SIZE(order) : 0;  // null while mro() runs
    while (i < count && PyTuple_GET_ITEM(order, i) != start.get()) ++i;
    for (++i; i < count; ++i) {
      PyObject* base = PyTuple_GET_ITEM(order, i);
      auto* type = reinterpret_cast<PyTypeObject*>(base);
      world_.guards().guard_type_attribute(type, name, _PyType_Lookup(type, name));
      PyObject* found = PyDict_GetItemWithError(cpython::dict_of_class(type), name);
      if (!found) continue;
      // What it gives is the instance's: a property is a call, a slot may hold anything.
      const Ref instance = Ref::steal(PyObject_GetAttrString(super, "__self__"));
      if (!instance) return nullptr;
      if (instance.get() != object_type.get()) return bind(found, instance.get(), own_type);
      if (PyFunction_Check(found)) {
        const Ref known = Ref::steal(world_.read_constant(found));
        if (!known) return nullptr;
      }
      break;
    }
  }
  const TakerScope scope(*this, Taker::kInterpreter);
  Ref value = Ref::steal(PyObject_GetAttr(super, name));
  if (!value) return nullptr;
  if (PyMethod_Check(value.get()) || PyCFunction_Check(value.get()) ||
      Py_TYPE(value.get()) == &_PyMethodWrapper_Type) {
    world_.own(value.get());
    return value.release();
  }
  return world_.admit(value.release(), "super()");
}

PyObject* Interpreter::find_in_instance(PyObject* owner, PyObject* name, bool& out_failed) {
  PyObject** slot = _PyObject_GetDictPtr(owner);
  if (!slot) return nullptr;
  const SourceId source = world_.source_of(owner);
  PyObject* dict = *slot;
  if (!dict) {
    if (source != kNoSource) world_.guards().guard_no_instance_dict(source);
    return nullptr;
  }
  guards::Sources& sources = world_.guards().sources();
  if (const Effects::Found written = world_.effects().find(dict, name); written.found) {
    if (source != kNoSource)
      world_.guard_place(dict, sources.add(SourceKind::kInstanceDict, source, nullptr));
    return Py_XNewRef(written.value);
  }
  PyObject* value = PyDict_GetItemWithError(dict, name);
  if (source == kNoSource) return Py_XNewRef(value);
  const SourceId dict_source = sources.add(SourceKind::kInstanceDict, source, nullptr);
  if (!value) {
    world_.guards().guard_absence(dict_source, name);
    return nullptr;
  }
  PyObject* read = world_.read(value, sources.add(SourceKind::kDictItem, dict_source, name));
  out_failed = read == nullptr;
  return read;
}

PyObject* Interpreter::instance_attribute(PyObject* owner, PyObject* name) {
  PyTypeObject* type = Py_TYPE(owner);
  if (keeps_operators(type)) {
    const bool outer = std::exchange(in_operator_, true);
    if (!Ref::steal(PyObject_GetAttr(owner, name))) PyErr_Clear();
    in_operator_ = outer;
  }
  PyObject* descriptor = _PyType_Lookup(type, name);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE))
    world_.guards().guard_type_attribute(type, name, descriptor);
  if (descriptor && is_data_descriptor(descriptor)) {
    PyObject* value = bind(descriptor, owner, type);
    if (value || world_.stopped() || !PyErr_ExceptionMatches(PyExc_AttributeError)) return value;
    return missing_attribute(owner, name);
  }
  bool failed = false;
  PyObject* value = find_in_instance(owner, name, failed);
  if (value || failed) return value;
  if (descriptor) return bind(descriptor, owner, type);
  return missing_attribute(owner, name);
}

PyObject* Interpreter::missing_attribute(PyObject* owner, PyObject* name) {
  PyTypeObject* type = Py_TYPE(owner);
  static PyObject* const hook_name = interned("__getattr__");
  PyObject* hook = _PyType_Lookup(type, hook_name);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE))
    world_.guards().guard_type_attribute(type, hook_name, hook);
  PyObject* arguments[2] = {owner, name};
  if (hook && PyFunction_Check(hook)) {
    PyErr_Clear();
    const Ref known = Ref::steal(world_.read_constant(hook));
    return known ? call(known.get(), arguments, 2, nullptr) : nullptr;
  }
  if (hook)
    return world_.stop(std::string("class ") + type->tp_name + " has an unusual __getattr__");
  if (PyModule_Check(owner)) {
    bool failed = false;
    const Ref module_hook = Ref::steal(find_in_instance(owner, hook_name, failed));
    if (failed) return nullptr;
    if (module_hook) return call(module_hook.get(), arguments + 1, 1, nullptr);
  }
  if (PyErr_Occurred()) return nullptr;  // from a property
  const Ref of_module = PyModule_Check(owner) ? Ref::steal(PyModule_GetNameObject(owner)) : Ref();
  PyErr_Clear();
  if (of_module)
    PyErr_Format(PyExc_AttributeError, "module '%U' has no attribute '%U'", of_module.get(), name);
  else if (PyType_Check(owner))
    PyErr_Format(PyExc_AttributeError, "type object '%.50s' has no attribute '%U'",
                 reinterpret_cast<PyTypeObject*>(owner)->tp_name, name);
  else
    PyErr_Format(PyExc_AttributeError, "'%.100s' object has no attribute '%U'", type->tp_name,
                 name);
  return nullptr;
}

bool Interpreter::set_attribute(PyObject* owner, PyObject* name, PyObject* value) {
  PyTypeObject* type = Py_TYPE(owner);
  if (PyType_Check(owner)) return store_attribute(owner, name, value);
  static PyObject* const set_name = interned("__setattr__");
  static PyObject* const delete_name = interned("__delattr__");
  PyObject* setter_name = value ? set_name : delete_name;
  PyObject* setter = _PyType_Lookup(type, setter_name);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE))
    world_.guards().guard_type_attribute(type, setter_name, setter);
  if (setter && PyFunction_Check(setter)) {
    const Ref known = Ref::steal(world_.read_constant(setter));
    PyObject* arguments[3] = {owner, name, value};
    return known && Ref::steal(call(known.get(), arguments, value ? 3 : 2, nullptr));
  }
  if (world_.is_own(owner) || guards::is_tensor(owner) ||
      type->tp_setattro == PyObject_GenericSetAttr ||
      setter == _PyType_Lookup(&PyBaseObject_Type, setter_name))
    return store_attribute(owner, name, value);
  world_.stop(std::string("class ") + type->tp_name + " sets attributes its own way");
  return false;
}

bool Interpreter::store_attribute(PyObject* owner, PyObject* name, PyObject* value) {
  PyTypeObject* type = Py_TYPE(owner);
  const bool is_tensor = guards::is_tensor(owner);
  const auto refuse = [&] {
    world_.stop("the program sets ." + std::string(text_of(name)) + " of an object from outside (" +
                type->tp_name + ")");
    return false;
  };
  if (PyType_Check(owner)) return refuse();
  if (text_of(name) == "__dict__") {  // which others may have, too
    world_.stop(std::string("the program replaces the __dict__ of an object of class ") +
                type->tp_name);
    return false;
  }
  PyObject* descriptor = _PyType_Lookup(type, name);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE))
    world_.guards().guard_type_attribute(type, name, descriptor);
  if (descriptor && !is_tensor && Py_TYPE(descriptor)->tp_descr_set) {
    if (Py_TYPE(descriptor) == &PyProperty_Type) {
      const Ref setter = Ref::steal(PyObject_GetAttrString(descriptor, value ? "fset" : "fdel"));
      if (!setter) return false;
      if (setter.get() != Py_None) {
        const Ref known = Ref::steal(world_.read_constant(setter.get()));
        PyObject* arguments[2] = {owner, value};
        return known && Ref::steal(call(known.get(), arguments, value ? 2 : 1, nullptr));
      }
    } else if (PyType_HasFeature(Py_TYPE(descriptor), Py_TPFLAGS_HEAPTYPE)) {
      const Ref known = Ref::steal(world_.read_constant(descriptor));
      const Ref method = Ref::steal(
          known ? attribute(known.get(), interned(value ? "__set__" : "__delete__")) : nullptr);
      PyObject* arguments[2] = {owner, value};
      return method && Ref::steal(call(method.get(), arguments, value ? 2 : 1, nullptr));
    }
  }
  if (is_tensor && (descriptor || world_.is_input_tensor(owner))) return refuse();
  if (!world_.is_own(owner)) return store_in_instance(owner, name, value);
  PyTypeObject* base = type;
  while (PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE) && base->tp_base) base = base->tp_base;
  return base->tp_setattro(owner, name, value) == 0 && !world_.stopped();
}

PyObject* Interpreter::global(PyObject* globals, PyObject* builtins, PyObject* name) {
  guards::Sources& sources = world_.guards().sources();
  if (!PyDict_CheckExact(globals) || !PyDict_CheckExact(builtins))
    return world_.stop("the function has unusual globals");
  const SourceId source = sources.add(SourceKind::kConstant, kNoSource, globals);
  const Effects::Found written = world_.effects().find(globals, name);
  if (written.value) return Py_NewRef(written.value);
  if (!written.found) {
    if (PyObject* value = PyDict_GetItemWithError(globals, name))
      return world_.read(value, sources.add(SourceKind::kDictItem, source, name));
    world_.guards().guard_absence(source, name);
  }
  const Effects::Found replaced = world_.effects().find(builtins, name);
  if (replaced.value) return Py_NewRef(replaced.value);
  const SourceId builtin_source = sources.add(SourceKind::kConstant, kNoSource, builtins);
  if (!replaced.found) {
    if (PyObject* value = PyDict_GetItemWithError(builtins, name))
      return world_.read(value, sources.add(SourceKind::kDictItem, builtin_source, name));
    world_.guards().guard_absence(builtin_source, name);
  }
  PyErr_Format(PyExc_NameError, "name '%U' is not defined", name);
  change_error([&](PyObject* value) {
    if (Py_TYPE(value) == reinterpret_cast<PyTypeObject*>(PyExc_NameError))
      Py_XSETREF(reinterpret_cast<PyNameErrorObject*>(value)->name, Py_NewRef(name));
  });
  return nullptr;
}

}  // namespace backplane::capture
