// One owned reference to a Python object. Everything here needs the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <utility>
#include <vector>

namespace backplane::cpython {

class Ref {
 public:
  Ref() = default;
  static Ref steal(PyObject* owned) { return Ref(owned); }
  static Ref borrow(PyObject* borrowed) { return Ref(Py_XNewRef(borrowed)); }
  Ref(const Ref& other) : object_(Py_XNewRef(other.object_)) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  explicit Ref(PyObject* owned) : object_(owned) {}

  PyObject* object_ = nullptr;
};

// What tp_traverse hands to C++ objects: each shows the references that it owns, every one once.
// One that is not shown keeps a cycle alive for ever; one that is not owned crashes.
class OwnedRefs {
 public:
  OwnedRefs(visitproc visit, void* arg) : visit_(visit), arg_(arg) {}

  void show(const Ref& ref) { show_borrowed(ref.get()); }
  void show(const std::vector<Ref>& refs) {
    for (const Ref& ref : refs) show(ref);
  }
  template <class Owner>
  void show(const Owner& owner) {
    owner.show_refs(*this);
  }
  template <class Owner>
  void show(const std::unique_ptr<Owner>& owner) {
    if (owner) owner->show_refs(*this);
  }
  // A call in flight has a share too: not the object's alone.
  template <class Owner>
  void show(const std::shared_ptr<Owner>& owner) {
    if (owner && owner.use_count() == 1) owner->show_refs(*this);
  }
  // A reference that the owner holds some other way.
  void show_borrowed(PyObject* object) {
    if (object && status_ == 0) status_ = visit_(object, arg_);
  }
  int status() const { return status_; }

 private:
  visitproc visit_;
  void* arg_;
  int status_ = 0;
};

}  // namespace backplane::cpython
