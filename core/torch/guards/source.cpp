#include "core/torch/guards/source.h"

#include <functional>
#include <utility>
#include <vector>

#include "core/torch/guards/cached_call.h"
#include "core/torch/guards/content.h"

namespace backplane::guards {

std::string repr(PyObject* object) {
  const cpython::Ref text = cpython::Ref::steal(PyObject_Repr(object));
  const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (utf8) return utf8;
  PyErr_Clear();
  return std::string("<") + Py_TYPE(object)->tp_name + ">";
}

namespace {

std::string name_of(PyObject* key) {
  const char* utf8 = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : nullptr;
  if (utf8) return utf8;
  PyErr_Clear();
  return repr(key);
}

std::string constant_text(PyObject* object) {
  if (PyType_Check(object)) return reinterpret_cast<PyTypeObject*>(object)->tp_name;
  if (PyModule_Check(object)) {
    const char* name = PyModule_GetName(object);
    if (name) return name;
    PyErr_Clear();
  }
  if (PyFunction_Check(object))
    return name_of(reinterpret_cast<PyFunctionObject*>(object)->func_qualname);
  if (PyDict_Check(object)) {
    PyObject* name = PyDict_GetItemString(object, "__name__");  // borrowed
    return name ? name_of(name) : "globals";
  }
  return std::string("<") + Py_TYPE(object)->tp_name + ">";
}

PyObject* item_of(PyObject* dict, PyObject* key) {
  PyObject* item = PyDict_GetItemWithError(dict, key);
  if (!item) PyErr_Clear();
  return item;
}

PyObject* set_item(PyObject* set, std::int64_t index) {
  Py_ssize_t position = 0;
  PyObject* key = nullptr;
  Py_hash_t hash = 0;
  for (std::int64_t i = 0; _PySet_NextEntry(set, &position, &key, &hash); ++i)
    if (i == index) return key;
  return nullptr;
}

}  // namespace

// Of objects the class: their text may be long.
std::string call_text(PyObject* arguments) {
  const auto text_of = [](PyObject* value) {
    return PyUnicode_Check(value) || PyLong_Check(value) || PyFloat_Check(value) ||
                   PyTuple_Check(value) || value == Py_None
               ? repr(value)
               : constant_text(value);
  };
  std::string text;
  PyObject* const positional = PyTuple_GET_ITEM(arguments, 0);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positional); ++i)
    text += (text.empty() ? "" : ", ") + text_of(PyTuple_GET_ITEM(positional, i));
  Py_ssize_t position = 0;
  PyObject *name, *value;
  if (PyObject* const keywords = PyTuple_GET_ITEM(arguments, 1); PyDict_Check(keywords))
    while (PyDict_Next(keywords, &position, &name, &value))
      text += (text.empty() ? "" : ", ") + name_of(name) + "=" + text_of(value);
  return "(" + text + ")";
}

std::size_t Sources::Hash::operator()(const Key& key) const {
  std::size_t hash = std::hash<const void*>()(key.key);
  hash = hash * 31 + static_cast<std::size_t>(key.kind);
  hash = hash * 1'000'003 + key.parent;
  return hash * 31 + static_cast<std::size_t>(key.index);
}

SourceId Sources::add(SourceKind kind, SourceId parent, PyObject* key, std::int64_t index) {
  const auto [found, is_new] =
      ids_.emplace(Key{kind, parent, key, index}, static_cast<SourceId>(sources_.size()));
  if (is_new) sources_.push_back({kind, parent, cpython::Ref::borrow(key), index});
  return found->second;
}

void Sources::finish() {
  ids_ = {};
  sources_.shrink_to_fit();
}

std::string Sources::text(SourceId id) const {
  // A path may be as long as a linked list of the program.
  constexpr std::size_t kMostSteps = 64;
  std::vector<SourceId> path;
  for (SourceId at = id; at != kNoSource && path.size() < kMostSteps; at = sources_[at].parent)
    path.push_back(at);
  std::string above, parent, text;
  if (sources_[path.back()].parent != kNoSource) parent = above = "...";
  for (auto at = path.rbegin(); at != path.rend(); ++at) {
    text = step_text(sources_[*at], parent, above);
    above = std::exchange(parent, text);
  }
  return text;
}

std::string Sources::step_text(const Source& source, const std::string& parent,
                               const std::string& above) const {
  switch (source.kind) {
    case SourceKind::kPositional:
      return source.key ? name_of(source.key.get()) : "arg" + std::to_string(source.index);
    case SourceKind::kKeyword:
      return name_of(source.key.get());
    case SourceKind::kConstant:
      return constant_text(source.key.get());
    case SourceKind::kInstanceDict:
      return parent + ".__dict__";
    case SourceKind::kDictItem: {
      const Source& dict = sources_[source.parent];
      if (dict.kind == SourceKind::kInstanceDict && PyUnicode_Check(source.key.get()))
        return above + "." + name_of(source.key.get());
      return parent + "[" + repr(source.key.get()) + "]";
    }
    case SourceKind::kListItem:
    case SourceKind::kTupleItem:
    case SourceKind::kDequeItem:
      return parent + "[" + std::to_string(source.index) + "]";
    case SourceKind::kSetItem:
      return "sorted(" + parent + ")[" + std::to_string(source.index) + "]";
    case SourceKind::kSlot: {
      const cpython::Ref name =
          cpython::Ref::steal(PyObject_GetAttrString(source.key.get(), "__name__"));
      if (!name) PyErr_Clear();
      return parent + "." + (name ? name_of(name.get()) : "?");
    }
    case SourceKind::kDefault:
      return parent + ".__defaults__[" + std::to_string(source.index) + "]";
    case SourceKind::kKeywordDefault:
      return parent + ".__kwdefaults__[" + repr(source.key.get()) + "]";
    case SourceKind::kClosure:
      return parent + ".__closure__[" + std::to_string(source.index) + "]";
    case SourceKind::kCellContent:
      return parent + ".cell_contents";
    case SourceKind::kMethodSelf:
      return parent + ".__self__";
    case SourceKind::kMethodFunction:
      return parent + ".__func__";
    case SourceKind::kReferent:
      return parent + "()";
    case SourceKind::kContextValue:
      return parent + ".get()";
    case SourceKind::kProxied:
      return parent;
    case SourceKind::kCachedResult:
      return parent + call_text(source.key.get());
  }
  return "?";
}

cpython::Ref ordered_keys(PyObject* dict) {
  if (!PyObject_TypeCheck(dict, &PyODict_Type)) return cpython::Ref::steal(PyDict_Keys(dict));
  const cpython::Ref iterator = cpython::Ref::steal(PyODict_Type.tp_iter(dict));
  cpython::Ref keys = cpython::Ref::steal(PyList_New(0));
  while (iterator && keys) {
    const cpython::Ref key = cpython::Ref::steal(PyIter_Next(iterator.get()));
    if (!key) break;
    if (PyList_Append(keys.get(), key.get()) != 0) break;
  }
  PyErr_Clear();
  return keys;
}

PyObject* mapping_of(PyObject* proxy) {
  // The begin of CPython's mappingproxyobject and of _PyDictViewObject.
  struct Proxy {
    PyObject ob_base;
    PyObject* mapping;
  };
  return reinterpret_cast<Proxy*>(proxy)->mapping;
}

PyObject* deque_item(PyObject* deque, Py_ssize_t index) {
  PyObject* item = index < Py_SIZE(deque)
                       ? base_in_c(Py_TYPE(deque))->tp_as_sequence->sq_item(deque, index)
                       : nullptr;
  if (!item) PyErr_Clear();
  return item;
}

PyObject* follow(const Source& source, PyObject* parent, std::vector<cpython::Ref>& out_owned) {
  const auto index = static_cast<Py_ssize_t>(source.index);
  switch (source.kind) {
    case SourceKind::kPositional:
    case SourceKind::kKeyword:
      return nullptr;
    case SourceKind::kConstant:
      return source.key.get();
    case SourceKind::kInstanceDict: {
      PyObject** dict = _PyObject_GetDictPtr(parent);
      return dict ? *dict : nullptr;
    }
    case SourceKind::kDictItem:
      return PyDict_Check(parent) ? item_of(parent, source.key.get()) : nullptr;
    case SourceKind::kListItem:
      return PyList_Check(parent) && index < PyList_GET_SIZE(parent)
                 ? PyList_GET_ITEM(parent, index)
                 : nullptr;
    case SourceKind::kTupleItem:
      return PyTuple_Check(parent) && index < PyTuple_GET_SIZE(parent)
                 ? PyTuple_GET_ITEM(parent, index)
                 : nullptr;
    case SourceKind::kDequeItem: {
      PyObject* value = is_deque(parent) ? deque_item(parent, index) : nullptr;
      if (value) out_owned.push_back(cpython::Ref::steal(value));
      return value;
    }
    case SourceKind::kSetItem:
      return PyAnySet_Check(parent) ? set_item(parent, source.index) : nullptr;
    case SourceKind::kSlot: {
      PyObject* value = Py_TYPE(source.key.get())
                            ->tp_descr_get(source.key.get(), parent,
                                           reinterpret_cast<PyObject*>(Py_TYPE(parent)));
      if (!value) PyErr_Clear();
      out_owned.push_back(cpython::Ref::steal(value));
      return value;
    }
    case SourceKind::kDefault: {
      PyObject* defaults = PyFunction_Check(parent) ? PyFunction_GET_DEFAULTS(parent) : nullptr;
      return defaults && index < PyTuple_GET_SIZE(defaults) ? PyTuple_GET_ITEM(defaults, index)
                                                            : nullptr;
    }
    case SourceKind::kKeywordDefault: {
      PyObject* defaults = PyFunction_Check(parent) ? PyFunction_GET_KW_DEFAULTS(parent) : nullptr;
      return defaults ? item_of(defaults, source.key.get()) : nullptr;
    }
    case SourceKind::kClosure: {
      PyObject* closure = PyFunction_Check(parent) ? PyFunction_GET_CLOSURE(parent) : nullptr;
      return closure && index < PyTuple_GET_SIZE(closure) ? PyTuple_GET_ITEM(closure, index)
                                                          : nullptr;
    }
    case SourceKind::kCellContent:
      return PyCell_Check(parent) ? PyCell_GET(parent) : nullptr;
    case SourceKind::kMethodSelf:
      return PyMethod_Check(parent) ? PyMethod_GET_SELF(parent) : nullptr;
    case SourceKind::kMethodFunction:
      return PyMethod_Check(parent) ? PyMethod_GET_FUNCTION(parent) : nullptr;
    case SourceKind::kReferent:
      return PyWeakref_CheckRef(parent) ? PyWeakref_GET_OBJECT(parent) : nullptr;
    case SourceKind::kContextValue: {
      PyObject* value = nullptr;
      if (!PyContextVar_CheckExact(parent) || PyContextVar_Get(parent, nullptr, &value) != 0)
        PyErr_Clear();
      out_owned.push_back(cpython::Ref::steal(value));
      return value;
    }
    case SourceKind::kProxied:
      return shows_mapping(parent) ? mapping_of(parent) : nullptr;
    case SourceKind::kCachedResult: {
      if (!is_cached_function(parent)) return nullptr;
      out_owned.push_back(find_cached(parent, source.key.get()));
      return out_owned.back().get();
    }
  }
  return nullptr;
}

}  // namespace backplane::guards
