// Functions behind caches. What reads nothing that may change, and gives a plain value, is followed
// as if there were no cache. Of any other the cache is asked: what it has is an object from
// outside, and a later call is served where the cache has the same. Where it has nothing, a
// function that only reads is called in truth, which nobody notices; any other is called where it
// stands, behind a break, and the next capture finds what it gave.
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Size.h>

#include <algorithm>
#include <optional>

#include "core/cpython/frame/hook.h"
#include "core/torch/guards/cached_call.h"
#include "core/torch/guards/content.h"
#include "core/torch/guards/same_value.h"
#include "core/torch/interpret/interpreter.h"
#include "core/torch/record/session.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

// By weak references: a function may be made for each of many objects. Needs the GIL.
class WeakSet {
 public:
  bool has(PyObject* object) const {
    return std::ranges::any_of(references_, [&](const Ref& reference) {
      return PyWeakref_GET_OBJECT(reference.get()) == object;
    });
  }
  bool add(PyObject* object) {
    std::erase_if(references_, [](const Ref& reference) {
      return PyWeakref_GET_OBJECT(reference.get()) == Py_None;
    });
    Ref reference = Ref::steal(PyWeakref_NewRef(object, nullptr));
    if (!reference) {
      PyErr_Clear();
      return false;
    }
    references_.push_back(std::move(reference));
    return true;
  }

 private:
  std::vector<Ref> references_;
};

// Cached functions that a capture could not follow. It lives as long as the process.
WeakSet& called_in_truth() {
  static auto& functions = *new WeakSet;
  return functions;
}

// The thread as it was when the program was called, outside of the recording.
class OutsideRecording {
 public:
  explicit OutsideRecording(const World& world)
      : grad_(at::GradMode::is_enabled()), keys_(world.guards().local_keys()) {
    if (world.began_in_inference()) inference_.emplace(true);
    at::GradMode::set_enabled(grad_ && !world.began_in_inference());
  }
  ~OutsideRecording() { at::GradMode::set_enabled(grad_); }
  OutsideRecording(const OutsideRecording&) = delete;
  OutsideRecording& operator=(const OutsideRecording&) = delete;

 private:
  bool grad_;
  record::SessionScope none_{record::Session::none()};
  c10::impl::ForceDispatchKeyGuard keys_;
  std::optional<c10::InferenceMode> inference_;  // ends before `keys_`, which it changes
  cpython::HookPause pause_;
};

bool is_plain_tuple(PyObject* object) {
  return PyTuple_CheckExact(object) || THPSize_Check(object);
}

// Tuples by their items.
bool is_same_argument(PyObject* a, PyObject* b) {
  if (Py_TYPE(a) == Py_TYPE(b) && is_plain_tuple(a)) {
    if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i)
      if (!is_same_argument(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
    return true;
  }
  return guards::same_value(a, b);
}

}  // namespace

// What a later call has in the same place is the same object, or one of the same value.
bool Interpreter::hold_argument(PyObject* argument) {
  if (is_primitive(argument) || is_fixed(argument) || THPDevice_Check(argument)) return true;
  if (guards::is_tensor(argument)) return false;
  if (is_plain_tuple(argument)) {
    if (!world_.expose_items(argument)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(argument); ++i)
      if (!hold_argument(PyTuple_GET_ITEM(argument, i))) return false;
    return true;
  }
  if (guards::content_of(argument) == guards::Content::kValue) return world_.expose(argument);
  if (!world_.is_outside(argument)) return false;
  world_.guards().guard_identity(world_.source_of(argument), argument);
  return true;
}

PyObject* Interpreter::call_cached(PyObject* function, PyObject* const* arguments,
                                   std::size_t count, PyObject* keyword_names) {
  if (world_.is_outside(function) && !is_sample_ && called_in_truth().has(function))
    return call_in_truth(function, arguments, count, keyword_names);
  const std::size_t guard_count = world_.guards().size();
  Ref result = Ref::steal(call_wrapped(function, arguments, count, keyword_names));
  if (is_sample_ && result) return result.release();
  std::string why;
  if (!result && !world_.stopped())
    why = "fails";
  else if (result && !world_.guards().only_fixed_since(guard_count))
    why = "reads what may change";
  else if (result && !is_primitive(result.get()) && !is_fixed(result.get()))
    why = "gives an object";
  else if (result)
    return result.release();
  if (!is_sample_ && world_.is_outside(function) && called_in_truth().add(function))
    wants_another_ = true;
  return world_.stopped() ? nullptr
                          : world_.stop("the program calls a cached function that " + why);
}

// Follows the function for what it would do. False where it raises, or the capture has ended.
bool Interpreter::only_reads(PyObject* function, PyObject* const* arguments, std::size_t count,
                             PyObject* keyword_names) {
  const record::Session* const session = record::Session::current();
  const std::size_t operators = session ? session->tape.calls.size() : 0;
  const bool is_first = world_.effects().all().empty();
  if (!Ref::steal(call_wrapped(function, arguments, count, keyword_names))) return false;
  const bool computes = session && session->tape.calls.size() != operators;
  if (is_first && world_.effects().all().empty() && !computes) return true;
  world_.stop("the program calls a cached function that " +
              std::string(computes ? "computes with tensors" : "changes what is outside") +
              ", and its cache has nothing yet");
  return false;
}

PyObject* Interpreter::call_in_truth(PyObject* function, PyObject* const* arguments,
                                     std::size_t count, PyObject* keyword_names) {
  const auto names = keyword_names ? PyTuple_GET_SIZE(keyword_names) : 0;
  for (std::size_t i = 0; i < count + static_cast<std::size_t>(names); ++i)
    if (!hold_argument(arguments[i]))
      return world_.stop("the program calls a cached function with a " +
                         std::string(Py_TYPE(arguments[i])->tp_name) + " of its own");
  const Ref positional = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  const Ref keywords = names ? Ref::steal(PyDict_New()) : Ref::borrow(Py_None);
  if (!positional || !keywords) return nullptr;
  for (std::size_t i = 0; i < count; ++i)
    PyTuple_SET_ITEM(positional.get(), static_cast<Py_ssize_t>(i), Py_NewRef(arguments[i]));
  for (Py_ssize_t i = 0; i < names; ++i)
    if (PyDict_SetItem(keywords.get(), PyTuple_GET_ITEM(keyword_names, i),
                       arguments[count + static_cast<std::size_t>(i)]) != 0)
      return nullptr;
  Ref both = Ref::steal(PyTuple_Pack(2, positional.get(), keywords.get()));
  if (!both) return nullptr;
  for (const CachedResult& known : cached_results_)
    if (known.function == function &&
        is_same_argument(PyTuple_GET_ITEM(known.arguments.get(), 0), positional.get()) &&
        keywords.get() == Py_None && PyTuple_GET_ITEM(known.arguments.get(), 1) == Py_None)
      return world_.read(known.result.get(), known.source);
  world_.guards().guard_identity(world_.source_of(function), function);
  CachedResult made{function, both, guards::find_cached(function, both.get()), {}};
  if (!made.result) {
    if (!only_reads(function, arguments, count, keyword_names)) {
      world_.guards().guard_not_cached(world_.source_of(function), both.get());
      return nullptr;
    }
    {
      const OutsideRecording outside(world_);
      made.result = guards::call_cached(function, both.get());
      if (!made.result) PyErr_Clear();
    }
    // What a guard will find.
    const Ref found = guards::find_cached(function, both.get());
    if (!made.result || !found || (found.get() != made.result.get() && !is_primitive(found.get())))
      return world_.stop("the program calls a cached function whose result is not kept");
  }
  made.source = world_.guards().sources().add(SourceKind::kCachedResult, world_.source_of(function),
                                              both.get());
  cached_results_.push_back(made);
  return world_.read(made.result.get(), made.source);
}

}  // namespace backplane::capture
