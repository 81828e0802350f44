// Where a value came from: the path from a call's arguments, or from an object that never changes,
// to the value. The guards of a cache entry follow these paths again.
#pragma once

#include <Python.h>
//
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/cpython/bytecode/py_ref.h"

namespace backplane::guards {

using SourceId = std::uint32_t;
inline constexpr SourceId kNoSource = 0xffffffffu;

// What repr() gives; the name of the class where that raises. Needs the GIL.
std::string repr(PyObject* object);

enum class SourceKind : std::uint8_t {
  kPositional,    // argument `index` of the call
  kKeyword,       // argument `index` of the call, given by the name `key`
  kConstant,      // the object `key` itself
  kInstanceDict,  // the __dict__ of an instance
  kDictItem,      // the value of `key` in a dict
  kListItem,      // element `index`
  kTupleItem,
  kDequeItem,
  kSetItem,         // element `index` in the set's own order
  kSlot,            // what the descriptor `key` (of a __slots__ entry or a C structure) reads
  kDefault,         // default `index` of a function
  kKeywordDefault,  // keyword default `key` of a function
  kClosure,         // cell `index` of a function
  kCellContent,
  kMethodSelf,
  kMethodFunction,
  kReferent,      // of a weak reference
  kContextValue,  // of the context variable
  kProxied,       // the mapping behind a mappingproxy or a view of a dict
  kCachedResult,  // what a function behind a cache has for the arguments `key`
};

struct Source {
  SourceKind kind = SourceKind::kConstant;
  SourceId parent = kNoSource;
  cpython::Ref key;
  std::int64_t index = 0;

  void show_refs(cpython::OwnedRefs& out) const { out.show(key); }
};

// All sources of one capture. One source stands for one path.
class Sources {
 public:
  SourceId add(SourceKind kind, SourceId parent, PyObject* key, std::int64_t index = 0);
  // No source follows: what finds equal ones goes.
  void finish();
  const Source& operator[](SourceId id) const { return sources_[id]; }
  std::size_t size() const { return sources_.size(); }
  // As a Python programmer would write it: `self.layers[0].weight`. Needs the GIL.
  std::string text(SourceId id) const;
  void show_refs(cpython::OwnedRefs& out) const {
    for (const Source& source : sources_) out.show(source);
  }

 private:
  // `parent`, `above`: the texts of its parent, and of the parent's.
  std::string step_text(const Source& source, const std::string& parent,
                        const std::string& above) const;

  struct Key {
    SourceKind kind;
    SourceId parent;
    PyObject* key;
    std::int64_t index;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };

  std::vector<Source> sources_;
  std::unordered_map<Key, SourceId, Hash> ids_;
};

// The arguments of a cached call as they are written behind the function. Needs the GIL.
std::string call_text(PyObject* arguments);

// The keys of a dict in the order in which Python hands them out: an OrderedDict has one of its
// own. Runs no code of the program.
cpython::Ref ordered_keys(PyObject* dict);

// What a mappingproxy or a view of a dict shows. Borrowed.
PyObject* mapping_of(PyObject* proxy);
// A new reference; null where there is none. A subclass may not say.
PyObject* deque_item(PyObject* deque, Py_ssize_t index);

// What the source is now, or null without an error set where the path ends early. Borrowed from
// what it was found in, or from `out_owned`. Runs no code of the program. Arguments are the
// caller's to find.
PyObject* follow(const Source& source, PyObject* parent, std::vector<cpython::Ref>& out_owned);

}  // namespace backplane::guards
