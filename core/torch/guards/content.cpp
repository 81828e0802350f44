#include "core/torch/guards/content.h"

#include <structmember.h>

#include <array>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "core/cpython/bytecode/class_dict.h"

namespace backplane::guards {

namespace {

using cpython::Ref;

// How values of a class are compared.
enum class Form : std::uint8_t {
  kNone,
  kInteger,
  kFloat,
  kComplex,
  kText,
  kBytes,
  kByteArray,
  kBuffer,  // the bytes and their format, by the buffer protocol
  kRepr,    // by what repr() of the class gives, which runs no Python and tells all
};

struct Row {
  const char* module;
  const char* names;  // separated by blanks
  Content content;
  Form form = Form::kNone;
  bool changes = false;          // the content may, while the object lives
  bool with_subclasses = false;  // of C, too: they add nothing that counts
  const char* parts = "";
};

constexpr std::array<Row, 33> kRows{{
    {"builtins", "object", Content::kNone},
    {"types", "FunctionType", Content::kNone},
    {"builtins", "int", Content::kValue, Form::kInteger},
    {"builtins", "float", Content::kValue, Form::kFloat},
    {"builtins", "complex", Content::kValue, Form::kComplex},
    {"builtins", "str", Content::kValue, Form::kText},
    {"builtins", "bytes", Content::kValue, Form::kBytes},
    {"builtins", "bytearray", Content::kValue, Form::kByteArray, true},
    {"array", "array", Content::kValue, Form::kBuffer, true},
    {"numpy",
     "bool bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 intc uintc longlong ulonglong "
     "float16 float32 float64 complex64 complex128",
     Content::kValue, Form::kBuffer},
    {"numpy", "str_", Content::kValue, Form::kText},
    {"numpy", "bytes_", Content::kValue, Form::kBytes},
    {"numpy", "longdouble clongdouble datetime64 timedelta64", Content::kIdentity},
    {"numpy", "dtype", Content::kIdentity, Form::kNone, false, true},
    {"decimal", "Decimal", Content::kValue, Form::kRepr},
    {"datetime", "date timedelta", Content::kValue, Form::kRepr},
    {"datetime", "datetime time timezone", Content::kIdentity},
    {"zoneinfo", "ZoneInfo", Content::kIdentity},
    {"re", "Pattern Match", Content::kIdentity},
    {"operator", "itemgetter attrgetter methodcaller", Content::kIdentity},
    {"types", "GenericAlias UnionType", Content::kIdentity},
    {"typing", "TypeVar ParamSpec TypeVarTuple", Content::kIdentity},
    {"builtins", "property staticmethod classmethod", Content::kIdentity},
    {"torch", "finfo iinfo qscheme", Content::kIdentity},
    {"builtins", "list dict set frozenset", Content::kItems},
    {"builtins", "tuple", Content::kItems, Form::kNone, false, true},
    {"collections", "OrderedDict deque", Content::kItems},
    {"collections", "defaultdict", Content::kItems, Form::kNone, false, false, "default_factory"},
    {"types", "CellType MappingProxyType MethodType SimpleNamespace", Content::kItems},
    {"builtins", "slice", Content::kItems, Form::kNone, false, false, "start stop step"},
    {"functools", "partial", Content::kItems, Form::kNone, false, false, "func args keywords"},
    {"weakref", "ref", Content::kItems},
    {"builtins", "BaseException", Content::kItems, Form::kNone, false, true, "args"},
}};

struct Known {
  const Row* row = nullptr;
  std::vector<PyObject*> parts;  // descriptors, owned for good
};

template <class Visit>
void each_word(std::string_view words, const Visit& visit) {
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    visit(std::string(words.substr(0, end)));
    words.remove_prefix(std::min(end + 1, words.size()));
  }
}

// A module that nobody has imported has made no objects. Borrowed; asks no module's __getattr__.
PyObject* find_imported(const char* module, const char* name) {
  PyObject* found = PyDict_GetItemString(PyImport_GetModuleDict(), module);
  return found && PyModule_Check(found) ? PyDict_GetItemString(PyModule_GetDict(found), name)
                                        : nullptr;
}

const Row* find_row(PyTypeObject* type) {
  for (const Row& row : kRows) {
    bool matches = false;
    each_word(row.names, [&](const std::string& name) {
      matches =
          matches || find_imported(row.module, name.c_str()) == reinterpret_cast<PyObject*>(type);
    });
    if (matches) return &row;
  }
  static constexpr Row kView{"builtins", "", Content::kItems};
  for (const PyTypeObject* view : {&PyDictKeys_Type, &PyDictValues_Type, &PyDictItems_Type,
                                   &PyODictKeys_Type, &PyODictValues_Type, &PyODictItems_Type})
    if (type == view) return &kView;
  return nullptr;
}

// No slot of the class reads more than the object's address.
bool reads_nothing(PyTypeObject* type) {
  return !type->tp_as_number && !type->tp_as_sequence && !type->tp_as_mapping &&
         !type->tp_as_buffer && !type->tp_iter && !type->tp_iternext && !type->tp_call &&
         type->tp_richcompare == PyBaseObject_Type.tp_richcompare &&
         type->tp_hash == PyBaseObject_Type.tp_hash && type->tp_repr == PyBaseObject_Type.tp_repr &&
         type->tp_str == PyBaseObject_Type.tp_str && type->tp_getattro == PyObject_GenericGetAttr;
}

const Known& known_of(PyTypeObject* type) {
  static auto& known = *new std::unordered_map<PyTypeObject*, Known>;
  static const Row kBlank{"", "", Content::kNone};
  const auto found = known.find(type);
  if (found != known.end()) return found->second;
  Known made;
  for (PyTypeObject* base = type; base && !made.row; base = base->tp_base) {
    const Row* row = find_row(base);
    if (!row || (base != type && !row->with_subclasses)) continue;
    // An exception with a structure of its own has more than its arguments.
    if (std::string_view(row->parts) == "args" && type->tp_basicsize != base->tp_basicsize)
      continue;
    made.row = row;
  }
  if (!made.row && reads_nothing(type)) made.row = &kBlank;
  if (made.row)
    each_word(made.row->parts, [&](const std::string& name) {
      const Ref text = Ref::steal(PyUnicode_InternFromString(name.c_str()));
      if (PyObject* descriptor = _PyType_Lookup(type, text.get()))
        made.parts.push_back(Py_NewRef(descriptor));
    });
  Py_INCREF(type);  // its address must name no other class
  return known.emplace(type, std::move(made)).first->second;
}

PyTypeObject* enum_metaclass() {
  static PyTypeObject* const type = [] {
    const Ref module = Ref::steal(PyImport_ImportModule("enum"));
    return reinterpret_cast<PyTypeObject*>(module ? PyObject_GetAttrString(module.get(), "EnumMeta")
                                                  : nullptr);
  }();
  return type;
}

bool is_enum_member(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return enum_metaclass() && Py_TYPE(type) != &PyType_Type &&
         PyType_IsSubtype(Py_TYPE(type), enum_metaclass());
}

Form form_of(PyObject* object) {
  const Row* row = known_of(base_in_c(Py_TYPE(object))).row;
  return row ? row->form : Form::kNone;
}

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

class Buffer {
 public:
  explicit Buffer(PyObject* object)
      : is_held_(PyObject_GetBuffer(object, &view_, PyBUF_CONTIG_RO | PyBUF_FORMAT) == 0) {}
  ~Buffer() {
    if (is_held_) PyBuffer_Release(&view_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool is_held() const { return is_held_; }
  std::string_view format() const { return view_.format ? view_.format : "B"; }
  std::string_view bytes() const {
    return {static_cast<const char*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
  bool is_held_;
};

std::string_view bytes_of(PyObject* bytes) {
  return {PyBytes_AS_STRING(bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes))};
}

PyObject* make_bytes(std::string_view bytes) {
  return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
}

Ref repr_in_c(PyObject* object) { return Ref::steal(base_in_c(Py_TYPE(object))->tp_repr(object)); }

// What a class statement adds to the layout of its base: __slots__, a __dict__, weak references.
Py_ssize_t largest_size(PyTypeObject* type) {
  return type->tp_base->tp_basicsize +
         (Py_SIZE(type) + 2) * static_cast<Py_ssize_t>(sizeof(PyObject*));
}

// Members of C are other than those of __slots__.
bool has_slots_alone(PyTypeObject* type) {
  for (const PyMemberDef* member = type->tp_members; member && member->name; ++member)
    if (member->type != T_OBJECT_EX || member->flags != 0) return false;
  return true;
}

}  // namespace

bool is_made_by_python(PyTypeObject* type) {
  static const destructor own = [] {
    const Ref made = Ref::steal(
        PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "Any"));
    return made ? reinterpret_cast<PyTypeObject*>(made.get())->tp_dealloc : nullptr;
  }();
  if (!own || !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || type->tp_dealloc != own ||
      !type->tp_base || type->tp_basicsize > largest_size(type) || !has_slots_alone(type))
    return false;
  if (type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) return false;
  return true;
}

PyTypeObject* base_in_c(PyTypeObject* type) {
  while (is_made_by_python(type)) type = type->tp_base;
  return type;
}

Content content_of(PyObject* object) {
  if (is_enum_member(object)) return Content::kIdentity;
  const Row* row = known_of(base_in_c(Py_TYPE(object))).row;
  return row ? row->content : Content::kUnknown;
}

bool is_immutable_value(PyObject* object) {
  const Row* row = known_of(base_in_c(Py_TYPE(object))).row;
  return row && row->content == Content::kValue && !row->changes;
}

Ref content_snapshot(PyObject* object) {
  switch (form_of(object)) {
    case Form::kInteger:
      return Ref::steal(_PyLong_Copy(reinterpret_cast<PyLongObject*>(object)));
    case Form::kFloat:
      return Ref::steal(PyFloat_FromDouble(PyFloat_AS_DOUBLE(object)));
    case Form::kComplex:
      return Ref::steal(PyComplex_FromCComplex(reinterpret_cast<PyComplexObject*>(object)->cval));
    case Form::kText:
      return Ref::steal(PyUnicode_FromObject(object));
    case Form::kBytes:
      return Ref::steal(make_bytes(bytes_of(object)));
    case Form::kByteArray:
      return Ref::steal(
          PyBytes_FromStringAndSize(PyByteArray_AS_STRING(object), PyByteArray_GET_SIZE(object)));
    case Form::kBuffer: {
      const Buffer buffer(object);
      if (!buffer.is_held()) return {};
      const Ref format = Ref::steal(make_bytes(buffer.format()));
      const Ref bytes = Ref::steal(make_bytes(buffer.bytes()));
      return format && bytes ? Ref::steal(PyTuple_Pack(2, format.get(), bytes.get())) : Ref();
    }
    case Form::kRepr:
      return repr_in_c(object);
    case Form::kNone:
      break;
  }
  PyErr_SetString(PyExc_SystemError, "an object without a value of its own");
  return {};
}

bool has_content(PyObject* object, PyObject* snapshot) {
  switch (form_of(object)) {
    case Form::kInteger: {
      const Ref equal = Ref::steal(PyLong_Type.tp_richcompare(object, snapshot, Py_EQ));
      return equal.get() == Py_True;
    }
    case Form::kFloat:
      return same_bits(PyFloat_AS_DOUBLE(object), PyFloat_AS_DOUBLE(snapshot));
    case Form::kComplex: {
      const Py_complex a = reinterpret_cast<PyComplexObject*>(object)->cval;
      const Py_complex b = reinterpret_cast<PyComplexObject*>(snapshot)->cval;
      return same_bits(a.real, b.real) && same_bits(a.imag, b.imag);
    }
    case Form::kText:
      return PyUnicode_Compare(object, snapshot) == 0;
    case Form::kBytes:
      return bytes_of(object) == bytes_of(snapshot);
    case Form::kByteArray:
      return std::string_view(PyByteArray_AS_STRING(object),
                              static_cast<std::size_t>(PyByteArray_GET_SIZE(object))) ==
             bytes_of(snapshot);
    case Form::kBuffer: {
      const Buffer buffer(object);
      if (!buffer.is_held()) {
        PyErr_Clear();
        return false;
      }
      return buffer.format() == bytes_of(PyTuple_GET_ITEM(snapshot, 0)) &&
             buffer.bytes() == bytes_of(PyTuple_GET_ITEM(snapshot, 1));
    }
    case Form::kRepr: {
      const Ref text = repr_in_c(object);
      if (!text) PyErr_Clear();
      return text && PyUnicode_Compare(text.get(), snapshot) == 0;
    }
    case Form::kNone:
      break;
  }
  return false;
}

bool compares_by_identity(PyObject* object) {
  return base_in_c(Py_TYPE(object))->tp_richcompare == PyBaseObject_Type.tp_richcompare;
}

const std::vector<PyObject*>& parts_of(PyObject* object) {
  return known_of(base_in_c(Py_TYPE(object))).parts;
}

bool is_partial(PyObject* object) {
  const Row* row = known_of(base_in_c(Py_TYPE(object))).row;
  return row && std::string_view(row->module) == "functools" && !parts_of(object).empty();
}

bool is_deque(PyObject* object) {
  static PyTypeObject* const type = [] {
    const Ref module = Ref::steal(PyImport_ImportModule("collections"));
    return reinterpret_cast<PyTypeObject*>(module ? PyObject_GetAttrString(module.get(), "deque")
                                                  : nullptr);
  }();
  return type && PyType_IsSubtype(Py_TYPE(object), type);
}

bool shows_mapping(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return type == &PyDictProxy_Type || type == &PyDictKeys_Type || type == &PyDictValues_Type ||
         type == &PyDictItems_Type || type == &PyODictKeys_Type || type == &PyODictValues_Type ||
         type == &PyODictItems_Type;
}

std::vector<std::string> content_rows() {
  std::vector<std::string> names;
  for (const Row& row : kRows)
    each_word(row.names, [&](const std::string& name) {
      names.push_back(std::string(row.module) + "." + name);
    });
  return names;
}

}  // namespace backplane::guards
