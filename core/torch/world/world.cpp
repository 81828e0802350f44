#include "core/torch/world/world.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cmath>

#include "core/torch/guards/content.h"
#include "core/torch/guards/same_value.h"
#include "core/torch/record/value_tensor.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

bool is_traced(PyObject* object) {
  return record::find_wrapped_value(THPVariable_Unpack(object)) != nullptr;
}

PyTypeObject* parameter_type() {
  static PyTypeObject* const type = [] {
    const Ref module = Ref::steal(PyImport_ImportModule("torch.nn.parameter"));
    return reinterpret_cast<PyTypeObject*>(
        module ? PyObject_GetAttrString(module.get(), "Parameter") : nullptr);
  }();
  return type;
}

bool is_bound_c_function(PyObject* object) {
  PyObject* self = PyCFunction_Check(object) ? PyCFunction_GET_SELF(object) : nullptr;
  return self && !PyModule_Check(self) && !PyType_Check(self);
}

// Stands in its module under its own name, as copyreg.__newobj__ does.
bool is_module_function(PyObject* object) {
  if (!PyFunction_Check(object)) return false;
  const auto* function = reinterpret_cast<PyFunctionObject*>(object);
  return PyDict_GetItemWithError(function->func_globals, function->func_name) == object;
}

// Nothing but numbers in it.
bool is_plain_slice(PyObject* object) {
  if (!PySlice_Check(object)) return false;
  const auto* slice = reinterpret_cast<PySliceObject*>(object);
  return is_primitive(slice->start) && is_primitive(slice->stop) && is_primitive(slice->step);
}

// C code gives the one object of this content, wherever else it is found.
bool is_singleton(PyObject* object) {
  if (PyTuple_CheckExact(object)) return PyTuple_GET_SIZE(object) == 0;
  if (PyFrozenSet_CheckExact(object)) return PySet_GET_SIZE(object) == 0;
  const std::string_view type = Py_TYPE(object)->tp_name;
  return type == "numpy.bool" || type == "numpy.bool_";
}

// Whether there may be another object of the same value: CPython has each small number and each
// letter once.
bool has_own_identity(PyObject* object) {
  if (PyLong_CheckExact(object)) {
    int overflow = 0;
    const long number = PyLong_AsLongAndOverflow(object, &overflow);
    return overflow != 0 || number < -5 || number > 256;
  }
  return PyFloat_CheckExact(object) || PyComplex_CheckExact(object) ||
         (PyUnicode_CheckExact(object) && PyUnicode_GET_LENGTH(object) > 1) ||
         (PyBytes_CheckExact(object) && PyBytes_GET_SIZE(object) > 1);
}

// What object.__repr__ and its kin write, wherever in a text it ends up.
bool names_address(PyObject* object) {
  constexpr std::string_view kMark = " at 0x";
  if (PyBytes_CheckExact(object))
    return std::string_view(PyBytes_AS_STRING(object),
                            static_cast<std::size_t>(PyBytes_GET_SIZE(object)))
               .find(kMark) != std::string_view::npos;
  if (!PyUnicode_CheckExact(object) ||
      PyUnicode_GET_LENGTH(object) <= static_cast<Py_ssize_t>(kMark.size()))
    return false;
  static PyObject* const mark = PyUnicode_InternFromString(kMark.data());
  return PyUnicode_Find(object, mark, 0, PyUnicode_GET_LENGTH(object), 1) >= 0;
}

// Containers find it only as the object that it is.
bool is_nan(PyObject* object) {
  return PyFloat_CheckExact(object) && std::isnan(PyFloat_AS_DOUBLE(object));
}

}  // namespace

bool is_primitive(PyObject* object) {
  return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) ||
         PyFloat_CheckExact(object) || PyUnicode_CheckExact(object) || PyBytes_CheckExact(object) ||
         PyComplex_CheckExact(object) || object == Py_Ellipsis || object == Py_NotImplemented;
}

bool is_fixed(PyObject* object) {
  if (PyType_Check(object) || PyModule_Check(object) || THPDtype_Check(object) ||
      THPLayout_Check(object) || THPMemoryFormat_Check(object))
    return true;
  if (PyCFunction_Check(object)) return !is_bound_c_function(object);
  PyTypeObject* type = Py_TYPE(object);
  return type == &PyMethodDescr_Type || type == &PyWrapperDescr_Type ||
         type == &PyGetSetDescr_Type || type == &PyMemberDescr_Type ||
         type == &PyClassMethodDescr_Type || PyCode_Check(object);
}

PyObject* World::stop(const std::string& reason) {
  if (reason_.empty()) reason_ = reason;
  PyErr_SetString(PyExc_RuntimeError, reason.c_str());
  return nullptr;
}

void World::know(PyObject* object, SourceId source) {
  if (!known_.emplace(object, Known{source, Depth::kNone}).second) return;
  alive_.push_back(Ref::borrow(object));
  if (source == kNoSource) return;
  guards_.guard_special_methods(Py_TYPE(object));
  if (PyType_Check(object)) guards_.guard_special_methods(reinterpret_cast<PyTypeObject*>(object));
}

void World::own(PyObject* object) {
  if (!is_primitive(object)) know(object, kNoSource);
}

void World::own_dict(PyObject* dict, PyObject* owner) {
  own(dict);
  own(owner);
  own_dicts_.emplace(dict, owner);
}

PyObject* World::owner_of(PyObject* dict) const {
  const auto found = own_dicts_.find(dict);
  return found == own_dicts_.end() ? nullptr : found->second;
}

void World::share(PyObject* object) {
  if (is_primitive(object)) return;
  if (const SourceId source = source_of(object); source != kNoSource)
    guards_.guard_identity(source, object);
  else if (shared_.insert(object).second)
    own(object);
  if (!PyTuple_CheckExact(object)) return;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) share(PyTuple_GET_ITEM(object, i));
}

PyObject* finalizer_name() {
  static PyObject* const name = PyUnicode_InternFromString("__del__");
  return name;
}

bool has_finalizer(PyTypeObject* type) { return _PyType_Lookup(type, finalizer_name()) != nullptr; }

bool World::ends_silently(PyTypeObject* type) {
  if (has_finalizer(type)) {
    stop(std::string("the program makes a ") + type->tp_name +
         ", whose __del__ would run when the capture ends");
    return false;
  }
  guards_.guard_type_attribute(type, finalizer_name(), nullptr);
  return true;
}

namespace {

// TorchDynamo, once used, watches every module. Needs the GIL.
bool is_of_torch(PyObject* callback) {
  if (!PyFunction_Check(callback)) return false;
  PyObject* module = PyFunction_GET_MODULE(callback);
  const char* name = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
  if (!name) PyErr_Clear();
  return name && std::string_view(name).starts_with("torch.");
}

// By a finalizer, a weak reference's callback, or what a generator still has to clean up.
bool ends_visibly(PyObject* object) {
  if (has_finalizer(Py_TYPE(object))) return true;
  if (PyGen_CheckExact(object)) return true;
  if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) return false;
  auto* reference = reinterpret_cast<PyWeakReference*>(
      *reinterpret_cast<PyObject**>(PyObject_GET_WEAKREFS_LISTPTR(object)));
  for (; reference; reference = reference->wr_next)
    if (reference->wr_callback && !is_of_torch(reference->wr_callback)) return true;
  return false;
}

}  // namespace

bool World::let_go(PyObject* object) {
  if (!object || (!is_outside(object) && !is_input_tensor(object))) return true;
  let_go_.insert(object);
  const SourceId source = source_of(object);
  if (source == kNoSource) return true;
  const SourceKind kind = guards_.sources()[source].kind;
  const bool is_held_by_frame = kind == SourceKind::kPositional || kind == SourceKind::kKeyword;
  if (!is_held_by_frame || !ends_visibly(object)) return true;
  stop(std::string("the program lets go of a ") + Py_TYPE(object)->tp_name +
       ", whose end it may see");
  return false;
}

bool World::is_own(PyObject* object) const {
  const auto found = known_.find(object);
  return found != known_.end() && found->second.source == kNoSource;
}

SourceId World::source_of(PyObject* object) const {
  const auto found = known_.find(object);
  return found == known_.end() ? kNoSource : found->second.source;
}

SourceId World::place_of(PyObject* object) const {
  const auto value = values_.find(object);
  return value == values_.end() ? source_of(object) : value->second;
}

SourceId World::path_of(PyObject* object) const {
  const auto input = input_of_.find(object);
  return input == input_of_.end() ? source_of(object) : inputs_[input->second].source;
}

void World::guard_identity_of(PyObject* a, PyObject* b) {
  if (has_own_identity(a) || has_own_identity(b)) return guard_identity_of_values(a, b);
  const auto identity_of = [this](PyObject* object) {
    if (!shared_.contains(object)) return path_of(object);
    return guards_.sources().add(SourceKind::kConstant, kNoSource, object);
  };
  const SourceId first = identity_of(a), second = identity_of(b);
  if (first == kNoSource || second == kNoSource || first == second) return;
  if (a == b)
    guards_.guard_same(first, second);
  else
    guards_.guard_distinct(first, second);
}

std::vector<SourceId> World::sources_of_value(PyObject* value) const {
  std::vector<SourceId> out;
  for (const auto& [object, source] : values_read_)
    if (object == value) out.push_back(source);
  return out;
}

// Their values are guarded: what is left are two objects of one value.
void World::guard_identity_of_values(PyObject* a, PyObject* b) {
  const std::vector<SourceId> first = sources_of_value(a), second = sources_of_value(b);
  if (a == b) {
    if (first.size() == 1) guards_.guard_identity(first[0], a);  // beside one of the code's own
    for (std::size_t i = 1; i < first.size(); ++i) guards_.guard_same(first[0], first[i]);
  } else if (!(first.empty() && second.empty()) && guards::same_value(a, b)) {
    const auto source_of = [this](const std::vector<SourceId>& sources, PyObject* object) {
      if (!sources.empty()) return sources[0];
      return guards_.sources().add(SourceKind::kConstant, kNoSource, object);
    };
    guards_.guard_distinct(source_of(first, a), source_of(second, b));
  }
}

void World::note_value(PyObject* value, SourceId source) {
  if (!has_own_identity(value)) return;
  if (is_nan(value))
    for (const auto& [object, other] : values_read_) {
      if (!is_nan(object) || other == source) continue;
      if (object == value)
        guards_.guard_same(other, source);
      else
        guards_.guard_distinct(other, source);
    }
  values_read_.emplace_back(value, source);  // its guard keeps it alive
}

void World::guard_identity_of_nan(PyObject* key) {
  if (!is_nan(key)) return;
  for (const SourceId source : sources_of_value(key)) guards_.guard_identity(source, key);
}

PyObject* World::read_own_attribute(PyObject* traced, PyObject* name) {
  const InputTensor& input = inputs_[input_of_.at(traced)];
  PyObject** dict = _PyObject_GetDictPtr(input.real.get());
  if (!dict || !*dict) {
    guards_.guard_no_instance_dict(input.source);
    return nullptr;
  }
  guards::Sources& sources = guards_.sources();
  const SourceId source = sources.add(SourceKind::kInstanceDict, input.source, nullptr);
  if (PyObject* value = PyDict_GetItemWithError(*dict, name))
    return read(value, sources.add(SourceKind::kDictItem, source, name));
  guards_.guard_absence(source, name);
  return nullptr;
}

PyObject* World::read_of_input(PyObject* traced, PyObject* descriptor) {
  const InputTensor& input = inputs_[input_of_.at(traced)];
  PyObject* real = input.real.get();
  const Ref value =
      Ref::steal(Py_TYPE(descriptor)
                     ->tp_descr_get(descriptor, real, reinterpret_cast<PyObject*>(Py_TYPE(real))));
  if (!value) return nullptr;
  return read(value.get(), guards_.sources().add(SourceKind::kSlot, input.source, descriptor));
}

void World::note_identity(PyObject* object) {
  if (is_primitive(object) || is_fixed(object)) return;
  const SourceId source = path_of(object);
  if (source != kNoSource && has_identity_.insert(source).second) identities_.push_back(source);
}

PyObject* World::address_of(PyObject* object) {
  note_identity(object);
  addresses_.insert(object);
  return PyLong_FromVoidPtr(object);
}

bool World::is_address(PyObject* number) const {
  if (addresses_.empty() || !PyLong_CheckExact(number)) return false;
  const void* const address = PyLong_AsVoidPtr(number);
  PyErr_Clear();
  return addresses_.count(address) != 0;
}

void World::note_search(PyObject* object, PyObject* container) {
  guard_identity_of_nan(object);
  if (path_of(object) == kNoSource || is_primitive(object) || is_fixed(object)) return;
  note_identity(object);
  Py_ssize_t position = 0;
  PyObject *key, *value;
  Py_hash_t hash;
  if (PyDict_Check(container)) {
    while (PyDict_Next(container, &position, &key, &value)) note_identity(key);
  } else if (PyAnySet_Check(container)) {
    while (_PySet_NextEntry(container, &position, &key, &hash)) note_identity(key);
  } else if (PyList_Check(container) || PyTuple_Check(container)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i)
      note_identity(PySequence_Fast_GET_ITEM(container, i));
  }
}

PyObject* World::read_constant(PyObject* object) {
  return read(object, guards_.sources().add(SourceKind::kConstant, kNoSource, object));
}

PyObject* World::read(PyObject* object, SourceId source) {
  if (guards::is_tensor(object)) return read_tensor(object, source);
  if (object == Py_None || PyBool_Check(object) || object == Py_Ellipsis ||
      object == Py_NotImplemented) {
    guards_.guard_identity(source, object);
    return Py_NewRef(object);
  }
  if (is_primitive(object) || THPDevice_Check(object) || PyRange_Check(object)) {
    guards_.guard_equality(source, object);
    if (is_primitive(object))
      note_value(object, source);
    else if (values_.emplace(object, source).second)
      alive_.push_back(Ref::borrow(object));
    return Py_NewRef(object);
  }
  if (is_fixed(object)) {
    guards_.guard_identity(source, object);
    know(object, guards_.sources().add(SourceKind::kConstant, kNoSource, object));
    return Py_NewRef(object);
  }
  if (const auto found = known_.find(object); found != known_.end()) {
    if (shared_.contains(object)) guards_.guard_identity(source, object);
    if (found->second.source == kNoSource) return Py_NewRef(object);
    if (found->second.source != source) guards_.guard_same(source, found->second.source);
    return Py_NewRef(object);
  }
  if (PyFunction_Check(object))
    guards_.guard_function(source, object);
  else
    guards_.guard_type(source, Py_TYPE(object));
  know(object, source);
  return Py_NewRef(object);
}

PyObject* World::read_tensor(PyObject* object, SourceId source) {
  if (const auto found = real_input_.find(object); found != real_input_.end()) {
    const InputTensor& input = inputs_[found->second];
    if (input.source != source) guards_.guard_same(source, input.source);
    return Py_NewRef(input.traced.get());
  }
  if (is_traced(object)) return Py_NewRef(object);
  const bool is_parameter = Py_TYPE(object) == parameter_type();
  if (!is_parameter && !THPVariable_CheckExact(object))
    return stop(guards_.sources().text(source) + " is a tensor of class " +
                Py_TYPE(object)->tp_name);
  guards_.guard_type(source, Py_TYPE(object));
  guards_.guard_special_methods(Py_TYPE(object));
  const at::Tensor& real = THPVariable_Unpack(object);
  guards_.guard_tensor(source, real);
  Ref traced;
  try {
    traced = Ref::steal(THPVariable_Wrap(hand_(real)));
  } catch (const std::exception& error) {
    return stop(guards_.sources().text(source) + ": " + error.what());
  }
  if (!traced) return nullptr;
  if (is_parameter && PyObject_SetAttrString(traced.get(), "__class__",
                                             reinterpret_cast<PyObject*>(parameter_type())) != 0)
    return nullptr;
  own(traced.get());
  real_input_.emplace(object, inputs_.size());
  input_of_.emplace(traced.get(), inputs_.size());
  inputs_.push_back({source, Ref::borrow(object), traced});
  return traced.release();
}

PyObject* World::admit(PyObject* object, const char* giver, Py_ssize_t owner_count) {
  if (!object) return nullptr;
  Ref held = Ref::steal(object);
  if (stopped()) return stop(reason_);
  if (guards::is_tensor(object)) {
    if (const auto found = real_input_.find(object); found != real_input_.end())
      return Py_NewRef(inputs_[found->second].traced.get());
    if (is_traced(object)) {
      own(object);
      return held.release();
    }
    if (const SourceId source = source_of(object); source != kNoSource)
      return read_tensor(object, source);
    return stop(std::string(giver) + " gave a tensor whose origin is unknown");
  }
  // A place that holds it now need not hold it in the next call.
  if (is_singleton(object)) {
    share(object);
    return held.release();
  }
  if (names_address(object))
    return stop(std::string(giver) + " gave a text that names the address of an object");
  if (is_primitive(object) || known_.count(object) != 0 || THPDevice_Check(object) ||
      PyRange_Check(object) || is_plain_slice(object))
    return held.release();
  if (PyTraceBack_Check(object)) {  // of an exception that was admitted
    own(object);
    return held.release();
  }
  if (is_fixed(object)) return read_constant(object);
  if (is_module_function(object)) return read_constant(object);
  const bool is_new = Py_REFCNT(object) <= owner_count;
  if (guards::is_immutable_value(object)) {  // made of what is guarded
    is_new ? own(object) : share(object);
    return held.release();
  }
  if (PyTuple_Check(object)) return admit_tuple(held.release(), giver, is_new);
  if (!is_new)
    return stop(std::string(giver) + " gave an object of class " + Py_TYPE(object)->tp_name +
                " whose origin is unknown");
  if (!admit_children(object, giver)) return nullptr;
  own(object);
  return held.release();
}

PyObject* World::admit_tuple(PyObject* object, const char* giver, bool is_new) {
  Ref held = Ref::steal(object);
  if (is_too_deep()) return stop(std::string(giver) + " gave a tuple that is nested too deep");
  const Py_ssize_t count = PyTuple_GET_SIZE(object);
  std::vector<Ref> items;
  bool changed = false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GET_ITEM(object, i);
    // The tuple and this function hold what is new in a new tuple.
    Ref admitted = Ref::steal(admit(Py_NewRef(item), giver, is_new ? 2 : 0));
    if (!admitted) return nullptr;
    changed = changed || admitted.get() != item;
    items.push_back(std::move(admitted));
  }
  if (changed) {
    if (!PyTuple_CheckExact(object))
      return stop(std::string(giver) + " gave a tuple of class " + Py_TYPE(object)->tp_name +
                  " with tensors from outside");
    held = Ref::steal(PyTuple_New(count));
    for (Py_ssize_t i = 0; i < count; ++i)
      PyTuple_SET_ITEM(held.get(), i, items[static_cast<std::size_t>(i)].release());
  }
  own(held.get());
  return held.release();
}

// A new list or dict may hold what was outside before; iterators and the like are asked later.
bool World::admit_children(PyObject* object, const char* giver) {
  if (is_too_deep()) {
    stop(std::string(giver) + " gave an object that is nested too deep");
    return false;
  }
  if (PyList_CheckExact(object)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
      PyObject* item = admit(Py_NewRef(PyList_GET_ITEM(object, i)), giver, 2);
      if (!item || PyList_SetItem(object, i, item) != 0) return false;
    }
  } else if (PyDict_Check(object)) {
    Py_ssize_t position = 0;
    PyObject *key, *value;
    while (PyDict_Next(object, &position, &key, &value)) {
      const Ref admitted = Ref::steal(admit(Py_NewRef(value), giver, 2));
      const Ref admitted_key = Ref::steal(admit(Py_NewRef(key), giver, 2));
      if (!admitted || !admitted_key) return false;
      // Replacing the value of a key that is there keeps the order.
      if (admitted.get() != value && PyDict_SetItem(object, key, admitted.get()) != 0) return false;
    }
  } else if (PyMethod_Check(object)) {
    const Ref self = Ref::steal(admit(Py_NewRef(PyMethod_GET_SELF(object)), giver, 2));
    return static_cast<bool>(self);
  }
  return true;
}

void World::guard_name(PyObject* type) {
  if (!PyType_HasFeature(reinterpret_cast<PyTypeObject*>(type), Py_TPFLAGS_HEAPTYPE)) return;
  const SourceId source = guards_.sources().add(SourceKind::kConstant, kNoSource, type);
  static PyObject* const names[] = {PyUnicode_InternFromString("__qualname__"),
                                    PyUnicode_InternFromString("__module__")};
  for (PyObject* name : names) {
    PyObject* descriptor = _PyType_Lookup(&PyType_Type, name);
    const Ref value = Ref::steal(PyType_Type.tp_getattro(type, name));
    if (!value)
      PyErr_Clear();
    else if (PyUnicode_CheckExact(value.get()))
      guards_.guard_equality(guards_.sources().add(SourceKind::kSlot, source, descriptor),
                             value.get());
  }
}

}  // namespace backplane::capture
