// Locks from outside. Nobody else is inside while the program is captured, and its graph needs
// none: a section that only reads and computes is captured without its lock. All else needs it in
// truth: the capture ends, and the frame breaks where the lock is taken.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "core/torch/interpret/interpreter.h"

namespace backplane::capture {

std::uint64_t Interpreter::input_versions() const {
  std::uint64_t sum = 0;
  for (const InputTensor& input : world_.inputs())
    sum += THPVariable_Unpack(input.traced.get())
               .unsafeGetTensorImpl()
               ->version_counter()
               .current_version();
  return sum;
}

PyObject* Interpreter::call_lock(PyObject* lock, const std::string& method, bool has_arguments) {
  const auto held =
      std::ranges::find(held_locks_.rbegin(), held_locks_.rend(), lock, &HeldLock::lock);
  if (method == "acquire" || method == "__enter__") {
    if (has_arguments) return world_.stop("the program takes a lock if it is free");
    if (held != held_locks_.rend() && std::string_view(Py_TYPE(lock)->tp_name) != "_thread.RLock")
      return world_.stop("the program takes a lock twice");
    held_locks_.push_back({lock, {root_.instruction, root_.step}, input_versions()});
    world_.forbid_writes(true);
    return Py_NewRef(Py_True);
  }
  if (method != "release" && method != "__exit__")
    return world_.stop("the program calls " + method + " of a lock");
  if (held == held_locks_.rend())
    return world_.stop("the program gives up a lock that it has taken before a break");
  if (held->input_versions != input_versions())
    return world_.stop("the program writes a tensor from outside while it holds a lock");
  held_locks_.erase(std::next(held).base());
  world_.forbid_writes(!held_locks_.empty());
  return Py_NewRef(Py_None);
}

bool Interpreter::settle_locks() {
  if (held_locks_.empty()) return true;
  world_.stop("the program ends with a lock that it has taken");
  return false;
}

StopPoint Interpreter::stop_point() const {
  StopPoint point{root_.instruction, root_.step};
  for (const HeldLock& held : held_locks_)
    if (held.taken.step < point.step) point = held.taken;
  return point;
}

}  // namespace backplane::capture
