#include "core/torch/frames/asked_gradients.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "core/torch/bridge/history.h"
#include "core/torch/guards/tensor_match.h"
#include "core/torch/world/world.h"

namespace backplane::call {

namespace {

using cpython::Ref;
using torch::autograd::Node;

// Those in a value, as far as they lie in lists, tuples, dicts and cells of functions.
void collect_tensors(PyObject* value, std::vector<at::Tensor>& out, int depth = 0) {
  constexpr int kDeepest = 4;
  if (!value || depth > kDeepest) return;
  if (guards::is_tensor(value)) {
    out.push_back(THPVariable_Unpack(value));
  } else if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      collect_tensors(PySequence_Fast_GET_ITEM(value, i), out, depth + 1);
  } else if (PyDict_CheckExact(value)) {
    Py_ssize_t position = 0;
    PyObject *key, *item;
    while (PyDict_Next(value, &position, &key, &item)) collect_tensors(item, out, depth + 1);
  } else if (PyCell_Check(value)) {
    collect_tensors(PyCell_GET(value), out, depth + 1);
  } else if (PyFunction_Check(value)) {
    collect_tensors(PyFunction_GET_CLOSURE(value), out, depth + 1);
  }
}

bool is_callable(PyObject* value) {
  return PyFunction_Check(value) || PyCFunction_Check(value) || PyMethod_Check(value) ||
         Py_TYPE(value) == &PyMethodDescr_Type;
}

bool is_for_itself(std::string_view name) {
  return name == "retain_grad" || name == "register_hook" || name == "_backward_hooks";
}

// The tensors whose gradient is asked for.
std::vector<at::Tensor> asked_tensors(const std::vector<Ref>& slots, std::string_view attribute) {
  std::vector<at::Tensor> asked;
  if (!attribute.empty()) {
    if (is_for_itself(attribute) && !slots.empty()) collect_tensors(slots.back().get(), asked);
    return asked;
  }
  bool asks_itself = false, asks_others = false;
  for (const Ref& slot : slots) {
    PyObject* value = slot.get();
    if (!value) continue;
    if (!is_callable(value)) {
      collect_tensors(value, asked);
      continue;
    }
    const Ref held = Ref::steal(PyObject_GetAttrString(value, "__name__"));
    const char* text = held && PyUnicode_Check(held.get()) ? PyUnicode_AsUTF8(held.get()) : nullptr;
    PyErr_Clear();
    const std::string_view name = text ? text : "";
    const bool for_itself = is_for_itself(name);
    const bool for_others = name == "grad" || name == "backward";
    if (!for_itself && !for_others) continue;
    asks_itself = for_itself;
    asks_others = for_others;
    asked.clear();
    if (PyMethod_Check(value)) collect_tensors(PyMethod_GET_SELF(value), asked);
    if (PyCFunction_Check(value)) collect_tensors(PyCFunction_GET_SELF(value), asked);
  }
  if (!asks_itself && !asks_others) return {};
  if (asks_others && !asked.empty()) asked.erase(asked.begin());  // what is differentiated
  return asked;
}

// Whether one of these, which `asked` may be too, has been computed from it.
bool is_source_of(const at::Tensor& asked, const std::vector<at::Tensor>& live) {
  if (!asked.requires_grad() || asked.is_leaf()) return false;
  const Node* const wanted = asked.grad_fn().get();
  return std::ranges::any_of(live, [&](const at::Tensor& from) {
    // Two results of one node do not come from each other.
    return from.requires_grad() && !from.is_leaf() && from.grad_fn().get() != wanted &&
           bridge::leads_to(from.grad_fn().get(), wanted);
  });
}

// Whether it would be no view any more as a result: its base is none, and no argument.
bool loses_its_base(const at::Tensor& view, const std::vector<at::Tensor>& live,
                    const capture::World& world) {
  if (!view.is_view()) return false;
  const at::Tensor base = bridge::root_of(view);
  const Ref object = Ref::steal(THPVariable_Wrap(base));
  return !world.is_input_tensor(object.get()) &&
         std::ranges::none_of(live, [&](const at::Tensor& one) { return one.is_same(base); });
}

// Those in what a frame goes on with.
std::vector<at::Tensor> tensors_in(const std::vector<Ref>& slots, const std::vector<Ref>& state) {
  std::vector<at::Tensor> live;
  for (const std::vector<Ref>* values : {&state, &slots})
    for (const Ref& value : *values) collect_tensors(value.get(), live);
  return live;
}

bool names(PyCodeObject* code, std::string_view wanted) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); ++i)
    if (const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(code->co_names, i));
        name && name == wanted)
      return true;
  return false;
}

bool names_hooks(PyCodeObject* code) {
  return names(code, "retain_grad") || names(code, "register_hook");
}

bool names_views(PyCodeObject* code) { return names(code, "_is_view") || names(code, "_base"); }

// Whether `holds` is true of it or of a function in it.
bool has_code(PyCodeObject* code, bool (*holds)(PyCodeObject*)) {
  if (holds(code)) return true;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_consts); ++i)
    if (PyObject* constant = PyTuple_GET_ITEM(code->co_consts, i); PyCode_Check(constant))
      if (has_code(reinterpret_cast<PyCodeObject*>(constant), holds)) return true;
  return false;
}

}  // namespace

bool may_ask_for_intermediate(PyCodeObject* code) {
  return has_code(code, [](PyCodeObject* one) {
    return names_hooks(one) || (names(one, "autograd") && names(one, "grad"));
  });
}

bool tells_view_without_base(PyCodeObject* code, const std::vector<Ref>& slots,
                             const std::vector<Ref>& state, const capture::World& world) {
  const bool asks = has_code(code, names_views);
  if (!asks && !has_code(code, names_hooks)) return false;
  const std::vector<at::Tensor> live = tensors_in(slots, state);
  return std::ranges::any_of(live, [&](const at::Tensor& one) {
    return (asks || one.requires_grad()) && loses_its_base(one, live, world);
  });
}

bool holds_intermediate(const std::vector<Ref>& slots, const std::vector<Ref>& state) {
  const std::vector<at::Tensor> live = tensors_in(slots, state);
  return std::ranges::any_of(live, [&](const at::Tensor& one) { return is_source_of(one, live); });
}

bool asks_for_intermediate(const std::vector<Ref>& slots, std::string_view attribute,
                           const std::vector<Ref>& state) {
  const std::vector<at::Tensor> asked = asked_tensors(slots, attribute);
  if (asked.empty()) return false;
  const std::vector<at::Tensor> live = tensors_in(slots, state);
  return std::ranges::any_of(asked, [&](const at::Tensor& one) { return is_source_of(one, live); });
}

}  // namespace backplane::call
