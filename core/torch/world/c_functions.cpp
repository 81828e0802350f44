#include "core/torch/world/c_functions.h"

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "core/cpython/bytecode/class_dict.h"
#include "core/torch/guards/content.h"
#include "core/torch/guards/switches.h"

namespace backplane::capture {

namespace {

using cpython::Ref;
using guards::Switch;
using guards::switches;

struct Row {
  const char* module;
  const char* names;  // separated by blanks; "*": all
  CFunctionKind kind;
};

constexpr std::array<Row, 38> kFunctions{{
    {"builtins",
     "abs all any ascii bin chr divmod format hex max min oct ord pow repr round sorted sum",
     CFunctionKind::kPure},
    {"builtins", "callable isinstance issubclass", CFunctionKind::kOfClass},
    {"builtins", "getattr", CFunctionKind::kGetattr},
    {"builtins", "hasattr", CFunctionKind::kHasattr},
    {"builtins", "setattr", CFunctionKind::kSetattr},
    {"builtins", "delattr", CFunctionKind::kDelattr},
    {"builtins", "next", CFunctionKind::kNext},
    {"builtins", "iter", CFunctionKind::kIter},
    {"builtins", "len", CFunctionKind::kLen},
    {"builtins", "id", CFunctionKind::kId},
    {"builtins", "hash", CFunctionKind::kHash},
    {"builtins", "vars", CFunctionKind::kVars},
    {"builtins", "locals", CFunctionKind::kLocals},
    {"_collections", "_count_elements", CFunctionKind::kFillsFirst},
    {"_heapq", "heapify heappush heappop heapreplace heappushpop", CFunctionKind::kFillsFirst},
    {"_bisect", "bisect_left bisect_right", CFunctionKind::kPure},
    {"_struct", "calcsize pack unpack unpack_from", CFunctionKind::kPure},
    {"posix", "fspath", CFunctionKind::kPure},
    {"math", "*", CFunctionKind::kPure},
    {"cmath", "*", CFunctionKind::kPure},
    {"_operator",
     "abs add and_ concat contains countOf eq floordiv ge getitem gt index indexOf inv invert le "
     "length_hint lshift lt matmul mod mul ne neg not_ or_ pos pow rshift sub truediv "
     "truth "
     "xor",
     CFunctionKind::kPure},
    {"_operator", "is_ is_not", CFunctionKind::kOfClass},
    {"_functools", "reduce", CFunctionKind::kPure},
    {"_abc", "_abc_instancecheck _abc_subclasscheck", CFunctionKind::kOfClass},
    {"_abc", "get_cache_token", CFunctionKind::kState},
    {"sys", "exc_info intern is_finalizing", CFunctionKind::kPure},
    {"itertools", "*", CFunctionKind::kPure},
    // What they ask is a part of every program's guards (guards/thread_state).
    {"torch._C",
     "_get_tracing_state _is_tracing is_grad_enabled "
     "is_autocast_enabled is_autocast_cpu_enabled is_autocast_cache_enabled get_autocast_dtype "
     "get_default_dtype _is_torch_function_enabled _is_torch_function_mode_enabled "
     "_len_torch_dispatch_stack _len_torch_function_stack _get_deterministic_algorithms "
     "_log_api_usage_once _are_functorch_transforms_active _is_any_autocast_enabled "
     "_is_autocast_available _autograd_init _is_key_in_tls "
     "_group_tensors_by_device_and_dtype",
     CFunctionKind::kPure},
    {"torch._C", "_has_torch_function _has_torch_function_unary _has_torch_function_variadic",
     CFunctionKind::kOfClass},
    {"torch._C", "_set_grad_enabled", CFunctionKind::kSwitch},
    {"torch._C", "is_inference_mode_enabled", CFunctionKind::kInferenceMode},
    {"torch",
     "set_autocast_enabled set_autocast_dtype set_autocast_cache_enabled "
     "autocast_increment_nesting autocast_decrement_nesting clear_autocast_cache",
     CFunctionKind::kSwitch},
    {"torch._C._functorch", "maybe_current_level peek_interpreter_stack", CFunctionKind::kPure},
    {"torch._C._functorch", "is_functorch_wrapped_tensor", CFunctionKind::kOfClass},
    {"torch._C._nn", "*", CFunctionKind::kOperator},
    {"torch._C._linalg", "*", CFunctionKind::kOperator},
    {"torch._C._fft", "*", CFunctionKind::kOperator},
    {"torch._C._special", "*", CFunctionKind::kOperator},
}};

// Methods of mutable containers that leave them as they are.
constexpr std::string_view kReaders =
    " get keys values items copy index count union intersection difference symmetric_difference "
    "issubset issuperset isdisjoint __contains__ __len__ __getitem__ __iter__ __eq__ __ne__ "
    "__reversed__ "
    "__repr__ __lt__ __le__ __gt__ __ge__ __or__ __and__ __sub__ __add__ __mul__ "
    "__init_subclass__ __hash__ __str__ __format__ __reduce_ex__ ";

// Methods that look at nothing but, in a dict or a set, the key that they are given first.
constexpr std::string_view kKeepers =
    " append appendleft insert get setdefault pop popitem popleft keys values items copy clear "
    "reverse rotate add discard move_to_end __len__ __iter__ __reversed__ __getitem__ __setitem__ "
    "__delitem__ ";
// Methods of sequences that take what an iterable gives.
constexpr std::string_view kHanders = " extend extendleft ";
// Methods of containers that compare, print or copy what is in them.
constexpr std::string_view kItemReaders =
    " index count remove sort __contains__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __repr__ "
    "__str__ __format__ __reduce_ex__ __hash__ ";

// Functions of PyTorch that change more than tensors, or look where the recording has nothing.
constexpr std::string_view kExcludedOperators =
    " set_default_dtype manual_seed seed numpy_T numpy data_ptr const_data_ptr is_set_to is_pinned "
    "_use_count _fix_weakref _view_func _view_func_unsafe _rev_view_func_unsafe "
    "_has_same_storage_numel tolist item __array__ "
    "requires_grad_ detach_ retain_grad __new__ _make_dual _make_dual_copy "
    "_make_subclass _make_wrapper_subclass register_hook backward share_memory_ pin_memory storage "
    "untyped_storage set_ resize_ resize_as_ _to_dlpack __reduce_ex__ __deepcopy__ record_stream "
    "from_file frombuffer from_numpy as_tensor _sync _from_functional_tensor _to_functional_tensor "
    "_functionalize_sync _enable_functionalization _disable_functionalization ";

bool contains_word(std::string_view words, std::string_view word) {
  return words.find(" " + std::string(word) + " ") != std::string_view::npos;
}

struct Tables {
  std::unordered_map<const PyMethodDef*, CFunctionKind> methods;  // by definition
  std::unordered_map<PyObject*, CFunctionKind> objects;           // by identity
  std::unordered_set<PyTypeObject*> immutable, containers, constructible, locks;
  std::unordered_set<PyTypeObject*> keeping, handing_on;  // what their constructors do
};

void add_function(Tables& tables, PyObject* function, CFunctionKind kind) {
  tables.objects.emplace(function, kind);
  if (PyCFunction_Check(function))
    tables.methods.emplace(reinterpret_cast<PyCFunctionObject*>(function)->m_ml, kind);
}

void add_row(Tables& tables, const Row& row) {
  const Ref module = Ref::steal(PyImport_ImportModule(row.module));
  if (!module) {
    PyErr_Clear();
    return;
  }
  if (std::string_view(row.names) == "*") {
    Py_ssize_t position = 0;
    PyObject *name, *value;
    while (PyDict_Next(PyModule_GetDict(module.get()), &position, &name, &value))
      if (PyCFunction_Check(value)) add_function(tables, Py_NewRef(value), row.kind);
    return;
  }
  std::string_view names = row.names;
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(' '), names.size());
    const std::string name(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
    // Kept for good: they are looked up by address.
    if (PyObject* function = PyObject_GetAttrString(module.get(), name.c_str()))
      add_function(tables, function, row.kind);
    else
      PyErr_Clear();
  }
}

void add_operators(Tables& tables, PyObject* type) {
  Py_ssize_t position = 0;
  PyObject *name, *value;
  while (PyDict_Next(cpython::dict_of_class(reinterpret_cast<PyTypeObject*>(type)), &position,
                     &name, &value)) {
    const char* text = PyUnicode_AsUTF8(name);
    if (contains_word(kExcludedOperators, text)) continue;
    if (Py_TYPE(value) == &PyMethodDescr_Type) {
      tables.methods.emplace(reinterpret_cast<PyMethodDescrObject*>(value)->d_method,
                             CFunctionKind::kOperator);
      continue;
    }
    PyObject* function = PyObject_GetAttr(type, name);
    if (function && PyCFunction_Check(function))
      add_function(tables, function, CFunctionKind::kOperator);
    else
      Py_XDECREF(function);
    PyErr_Clear();
  }
}

void add_types(std::unordered_set<PyTypeObject*>& set, const char* module, const char* names) {
  const Ref holder = Ref::steal(PyImport_ImportModule(module));
  std::string_view rest = names;
  while (holder && !rest.empty()) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    const std::string name(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    PyObject* type = PyObject_GetAttrString(holder.get(), name.c_str());
    if (type && PyType_Check(type)) set.insert(reinterpret_cast<PyTypeObject*>(type));
  }
  PyErr_Clear();
}

Tables make_tables() {
  Tables tables;
  for (const Row& row : kFunctions) add_row(tables, row);
  for (const Switch& row : switches())
    add_row(tables, {row.module, row.function, CFunctionKind::kState});
  const Ref torch = Ref::steal(PyImport_ImportModule("torch._C"));
  for (const char* name : {"_VariableFunctions", "TensorBase"}) {
    const Ref found = torch ? Ref::steal(PyObject_GetAttrString(torch.get(), name)) : Ref();
    if (!found) {
      PyErr_Clear();
      continue;
    }
    PyObject* type =
        PyType_Check(found.get()) ? found.get() : reinterpret_cast<PyObject*>(Py_TYPE(found.get()));
    add_operators(tables, type);
    if (type != found.get()) {  // an instance whose attributes are the functions
      PyObject* dict = cpython::dict_of_class(reinterpret_cast<PyTypeObject*>(type));
      Py_ssize_t position = 0;
      PyObject *key, *value;
      while (PyDict_Next(dict, &position, &key, &value)) {
        if (contains_word(kExcludedOperators, PyUnicode_AsUTF8(key))) continue;
        if (PyObject* function = PyObject_GetAttr(found.get(), key))
          add_function(tables, function, CFunctionKind::kOperator);
        else
          PyErr_Clear();
      }
    }
  }
  for (PyTypeObject* type :
       {&PyUnicode_Type, &PyBytes_Type, &PyLong_Type, &PyFloat_Type, &PyComplex_Type, &PyTuple_Type,
        &PyRange_Type, &PySlice_Type, &PyFrozenSet_Type, &PyBool_Type, Py_TYPE(Py_None)})
    tables.immutable.insert(type);
  add_types(tables.immutable, "re", "Pattern Match");
  add_types(tables.immutable, "datetime", "date timedelta");
  add_types(tables.immutable, "torch", "Size dtype device layout memory_format finfo iinfo");
  for (PyTypeObject* type :
       {&PyList_Type, &PyDict_Type, &PySet_Type, &PyODict_Type, &PyDictKeys_Type,
        &PyDictValues_Type, &PyDictItems_Type, &PyDictProxy_Type})
    tables.containers.insert(type);
  add_types(tables.containers, "collections", "deque defaultdict");
  tables.constructible = tables.immutable;
  tables.constructible.insert(tables.containers.begin(), tables.containers.end());
  for (PyTypeObject* type : {&PyBaseObject_Type, &PySuper_Type, &PyEnum_Type, &PyZip_Type,
                             &PyMap_Type, &PyFilter_Type, &PyReversed_Type, &PyProperty_Type,
                             &PyStaticMethod_Type, &PyClassMethod_Type, &PyMethod_Type})
    tables.constructible.insert(type);
  add_types(
      tables.constructible, "itertools",
      "accumulate chain combinations compress count cycle dropwhile filterfalse groupby islice "
      "pairwise permutations product repeat starmap takewhile zip_longest");
  add_types(tables.constructible, "functools", "partial");
  add_types(tables.constructible, "operator", "itemgetter attrgetter methodcaller");
  add_types(tables.constructible, "numpy",
            "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64");
  add_types(tables.constructible, "types", "SimpleNamespace");
  for (PyTypeObject* type : {&PyBaseObject_Type, &PySuper_Type, &PySlice_Type, &PyProperty_Type,
                             &PyStaticMethod_Type, &PyClassMethod_Type, &PyMethod_Type})
    tables.keeping.insert(type);
  add_types(tables.keeping, "functools", "partial");
  add_types(tables.keeping, "types", "SimpleNamespace");
  for (PyTypeObject* type :
       {&PyList_Type, &PyTuple_Type, &PyEnum_Type, &PyZip_Type, &PyReversed_Type})
    tables.handing_on.insert(type);
  add_types(tables.handing_on, "collections", "deque");
  add_types(tables.handing_on, "itertools",
            "chain combinations cycle islice pairwise permutations product repeat zip_longest");
  add_types(tables.locks, "_thread", "RLock LockType");
  add_types(tables.constructible, "torch._C", "DisableTorchFunctionSubclass DisableTorchFunction");
  return tables;
}

const Tables& tables() {
  static const Tables& made = *new Tables(make_tables());
  return made;
}

CFunctionKind method_kind(PyTypeObject* owner, std::string_view name, PyObject* self) {
  const Tables& known = tables();
  if (known.immutable.count(owner) != 0) return CFunctionKind::kPure;
  if (owner == &PyBaseObject_Type && name == "__getattribute__") return CFunctionKind::kFind;
  if (owner == &PyBaseObject_Type && (name == "__setattr__" || name == "__delattr__"))
    return CFunctionKind::kStore;
  if (owner == &PyType_Type && name == "__call__") return CFunctionKind::kMake;
  if (owner == &PyBaseObject_Type && name == "__init__") return CFunctionKind::kReader;
  if (known.containers.count(owner) != 0 || owner == &PyBaseObject_Type ||
      PyType_IsSubtype(owner, reinterpret_cast<PyTypeObject*>(PyExc_BaseException)))
    return contains_word(kReaders, name) ? CFunctionKind::kReader : CFunctionKind::kWriter;
  if (owner == &PyGen_Type) return CFunctionKind::kWriter;
  // Methods of iterators advance them; on the program's own that is its own affair.
  if (self && owner->tp_iternext) return CFunctionKind::kWriter;
  if (owner == &PyType_Type && name == "mro") return CFunctionKind::kPure;
  if (owner == &PyType_Type && (name == "__subclasscheck__" || name == "__instancecheck__"))
    return CFunctionKind::kOfClass;
  return CFunctionKind::kUnknown;
}

}  // namespace

CFunctionKind classify(PyObject* callable, PyObject*& out_self) {
  out_self = nullptr;
  const Tables& known = tables();
  if (const auto found = known.objects.find(callable); found != known.objects.end())
    return found->second;
  PyTypeObject* type = Py_TYPE(callable);
  if (PyCFunction_Check(callable)) {
    const auto* function = reinterpret_cast<PyCFunctionObject*>(callable);
    PyObject* self = function->m_self;
    const bool is_bound = self && !PyModule_Check(self);
    if (is_bound) out_self = self;
    if (const auto found = known.methods.find(function->m_ml); found != known.methods.end()) {
      if (found->second != CFunctionKind::kOperator) out_self = nullptr;
      return found->second;
    }
    if (!is_bound) return CFunctionKind::kUnknown;
    const std::string_view name = function->m_ml->ml_name;
    if (PyType_Check(self)) {  // object.__new__, dict.fromkeys and such
      out_self = nullptr;
      auto* owner = reinterpret_cast<PyTypeObject*>(self);
      if (name == "__instancecheck__" || name == "__subclasscheck__")
        return CFunctionKind::kOfClass;
      if (name == "__new__")
        return is_constructible(owner) ? CFunctionKind::kPure : CFunctionKind::kUnknown;
      return known.constructible.count(owner) != 0 ? CFunctionKind::kPure : CFunctionKind::kUnknown;
    }
    if (known.locks.count(Py_TYPE(self)) != 0) return CFunctionKind::kLock;
    // The class that the method comes from is the first base written in C that has it.
    PyTypeObject* owner = Py_TYPE(self);
    while (owner->tp_base && guards::is_made_by_python(owner)) owner = owner->tp_base;
    return method_kind(owner, name, self);
  }
  if (type == &PyMethodDescr_Type || type == &PyClassMethodDescr_Type) {
    const auto* descriptor = reinterpret_cast<PyMethodDescrObject*>(callable);
    const auto found = known.methods.find(descriptor->d_method);
    if (found != known.methods.end()) return found->second;
    return method_kind(descriptor->d_common.d_type, descriptor->d_method->ml_name, nullptr);
  }
  if (type == &PyWrapperDescr_Type) {
    const auto* descriptor = reinterpret_cast<PyWrapperDescrObject*>(callable);
    const char* name = PyUnicode_AsUTF8(descriptor->d_common.d_name);
    return method_kind(descriptor->d_common.d_type, name ? name : "", nullptr);
  }
  if (type == &_PyMethodWrapper_Type) {
    const Ref self = Ref::steal(PyObject_GetAttrString(callable, "__self__"));
    const Ref owner = Ref::steal(PyObject_GetAttrString(callable, "__objclass__"));
    const Ref name = Ref::steal(PyObject_GetAttrString(callable, "__name__"));
    if (!self || !owner || !name) {
      PyErr_Clear();
      return CFunctionKind::kUnknown;
    }
    out_self = self.get();  // the wrapper holds it
    return method_kind(reinterpret_cast<PyTypeObject*>(owner.get()), PyUnicode_AsUTF8(name.get()),
                       self.get());
  }
  return CFunctionKind::kUnknown;
}

CUse use_of_method(const char* name, PyObject* self) {
  if (contains_word(kKeepers, name))
    return PyDict_Check(self) || PyAnySet_Check(self) ? CUse::kKeepsByKey : CUse::kKeeps;
  return contains_word(kHanders, name) && !PyDict_Check(self) && !PyAnySet_Check(self)
             ? CUse::kHandsOn
             : CUse::kReads;
}

CUse use_of_class(PyTypeObject* type) {
  PyTypeObject* base = guards::base_in_c(type);
  const Tables& known = tables();
  if (known.keeping.count(base) != 0) return CUse::kKeeps;
  return known.handing_on.count(base) != 0 ? CUse::kHandsOn : CUse::kReads;
}

bool reads_as_it_goes(PyTypeObject* type) {
  PyTypeObject* base = guards::base_in_c(type);
  const Tables& known = tables();
  return base->tp_iternext && known.constructible.count(base) != 0 &&
         known.handing_on.count(base) == 0;
}

bool reads_own_items(const char* name) { return contains_word(kItemReaders, name); }

bool is_constructible(PyTypeObject* type) {
  while (type->tp_base && guards::is_made_by_python(type) &&
         tables().constructible.count(type) == 0)
    type = type->tp_base;
  return tables().constructible.count(type) != 0 ||
         PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(PyExc_BaseException));
}

const char* c_name(PyObject* callable) {
  if (PyCFunction_Check(callable))
    return reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name;
  if (Py_TYPE(callable) == &PyMethodDescr_Type)
    return reinterpret_cast<PyMethodDescrObject*>(callable)->d_method->ml_name;
  PyTypeObject* type = Py_TYPE(callable);
  // A name that is asked for by `__name__` is a new string each time.
  if (type == &PyWrapperDescr_Type)
    return reinterpret_cast<PyWrapperDescrObject*>(callable)->d_base->name;
  if (type == &_PyMethodWrapper_Type) {
    // The whole of CPython's wrapperobject, which no header declares.
    struct MethodWrapper {
      PyObject ob_base;
      PyWrapperDescrObject* descriptor;
      PyObject* self;
    };
    return reinterpret_cast<MethodWrapper*>(callable)->descriptor->d_base->name;
  }
  return type->tp_name;
}

}  // namespace backplane::capture
