// What C code can read of an object from outside, and how a guard holds it. One table decides: a
// class that is not in it has content that nothing can hold, and no code in C may look at it.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/cpython/bytecode/py_ref.h"

namespace backplane::guards {

enum class Content : std::uint8_t {
  kUnknown,   // not in the table
  kNone,      // nothing: what is asked of it runs Python, or is its identity
  kIdentity,  // never changes: the object itself is guarded
  kValue,     // guarded by value
  kItems,     // a container: guarded piece by piece
};

// By the class of C below those that Python code has defined, exactly; a member of an Enum is one
// of a kind.
Content content_of(PyObject* object);

// Whether the class is the product of a `class` statement: its layout is that of its base with
// attributes behind, and what its own slots do is done by functions of Python or by its bases.
bool is_made_by_python(PyTypeObject* type);
// The first class of C among the type and its bases, in the order of layouts.
PyTypeObject* base_in_c(PyTypeObject* type);

// Of kValue: content that cannot change while the object lives.
bool is_immutable_value(PyObject* object);
// Of kValue: what the content is now, as an object that nobody changes; null with an error set
// where it cannot be had.
cpython::Ref content_snapshot(PyObject* object);
// Whether an object of the class that the snapshot was taken of has that content still. Runs no
// code of the program.
bool has_content(PyObject* object, PyObject* snapshot);

// Whether C code that compares it looks at its address alone.
bool compares_by_identity(PyObject* object);

// Of kItems: parts of a fixed structure, each by the descriptor that reads it. Empty for those that
// have items of their own.
const std::vector<PyObject*>& parts_of(PyObject* object);
// partial, of the `functools` that the table knows: its first part is the function.
bool is_partial(PyObject* object);
// deque: read by position.
bool is_deque(PyObject* object);
// mappingproxy, and the views of a dict: `mapping_of` has what they show.
bool shows_mapping(PyObject* object);

// Names of the rows: "numpy.int64". For tests.
std::vector<std::string> content_rows();

}  // namespace backplane::guards
