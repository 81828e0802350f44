// What a program under capture writes outside of itself: kept apart until its graph has run, then
// done in the program's order. Until then the program's reads find it here.
#pragma once

#include <Python.h>
//
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/cpython/bytecode/py_ref.h"

namespace backplane::capture {

// The dict that the instance keeps its attributes in, or null. Borrowed.
PyObject* dict_of(PyObject* object);

enum class EffectKind : std::uint8_t {
  kAttribute,  // `key` of `owner`, which keeps it in its __dict__ or in a slot
  kItem,       // `key` of the dict `owner`
  kGlobal,     // `key` of the globals `owner`
  kCell,       // the content of the cell `owner`
  kList,       // the whole content of the list `owner`; `value` is a list of the program
  kAppend,     // `value` behind the end of the list `owner`, whose content nobody asked for
};

struct Effect {
  EffectKind kind;
  cpython::Ref owner, key;
  cpython::Ref value;  // null: deleted
  PyObject* place;     // the object that holds it: a dict, a cell, a list, an instance with slots
  std::size_t operators;  // that the program had called by then
  cpython::Ref earlier;   // what it had left there before the last of them; null: nothing
};

class Effects {
 public:
  // What the program has left at a place. `found` without a value: nothing is there any more.
  struct Found {
    bool found = false;
    PyObject* value = nullptr;  // borrowed
  };

  void write(EffectKind kind, PyObject* owner, PyObject* key, PyObject* value, PyObject* place,
             std::size_t operators);
  Found find(const PyObject* place, PyObject* key) const;
  bool has(EffectKind kind) const;
  void append(PyObject* list, PyObject* value, std::size_t operators);
  // The list that stands for one from outside; borrowed, null where there is none.
  PyObject* find_list(const PyObject* list) const;
  bool has_appended(const PyObject* list) const;
  // From now on `copy`, with what was appended, stands for `list`.
  bool replace_list(PyObject* list, PyObject* copy, std::size_t operators);
  // Whether anything in the object was written: C code must not look at it.
  bool touches(PyObject* object) const;

  const std::vector<Effect>& all() const { return effects_; }
  void clear() { effects_.clear(); }

 private:
  std::vector<Effect> effects_;
};

}  // namespace backplane::capture
