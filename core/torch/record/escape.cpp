#include <Python.h>
//
#include "core/torch/record/escape.h"

#include <torch/csrc/Generator.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/torch/record/session.h"
#include "core/torch/record/value_tensor.h"

namespace backplane::record {

namespace {

enum class What : std::uint8_t {
  kMemory,   // of a tensor: the object of the method, or the first argument of the function
  kStorage,  // that has no memory, as those of a recording
  kSeed,     // of a generator, whichever it is
  kState,    // the same, unless it is the state that the generator has: a checkpoint restores it
  kOffset,   // of a tensor in its storage: allowed, and remembered
};

struct Escape {
  const char* owner;  // type in torch._C; empty: a function of that module
  const char* name;
  What what;
};
constexpr std::array<Escape, 14> kEscapes{{
    {"TensorBase", "numpy", What::kMemory},
    {"TensorBase", "data_ptr", What::kMemory},
    {"TensorBase", "const_data_ptr", What::kMemory},
    {"TensorBase", "apply_", What::kMemory},
    {"TensorBase", "map_", What::kMemory},
    {"TensorBase", "map2_", What::kMemory},
    {"StorageBase", "resize_", What::kStorage},
    {"TensorBase", "storage_offset", What::kOffset},
    {"", "_to_dlpack", What::kMemory},
    {"", "_to_dlpack_versioned", What::kMemory},
    {"Generator", "manual_seed", What::kSeed},
    {"Generator", "seed", What::kSeed},
    {"Generator", "set_state", What::kState},
    {"Generator", "graphsafe_set_state", What::kSeed},
}};

std::array<PyCFunction, kEscapes.size()> g_originals{};

bool is_value(PyObject* object) {
  return object && THPVariable_Check(object) && find_wrapped_value(THPVariable_Unpack(object));
}

bool is_empty_storage(PyObject* object) {
  if (!object || !THPStorage_Check(object)) return false;
  const c10::Storage& storage = THPStorage_Unpack(object);
  const std::optional<std::int64_t> bytes = storage.sym_nbytes().maybe_as_int();
  return storage.data() == nullptr && bytes && *bytes > 0;
}

bool has_state(PyObject* generator, PyObject* state) {
  if (!state || !THPVariable_Check(state)) return false;
  at::Generator held = reinterpret_cast<THPGenerator*>(generator)->cdata;
  const std::lock_guard<std::mutex> lock(held.mutex());
  const at::Tensor now = held.get_state();
  const at::Tensor& wanted = THPVariable_Unpack(state);
  return !is_value(state) && wanted.is_cpu() && wanted.is_contiguous() &&
         now.nbytes() == wanted.nbytes() &&
         std::memcmp(now.const_data_ptr(), wanted.const_data_ptr(), now.nbytes()) == 0;
}

enum class Verdict : std::uint8_t { kPass, kNothingToDo, kRaised };

// `argument`: the first.
Verdict judge(const Escape& escape, PyObject* self, PyObject* argument) {
  Session* const session = Session::current();
  std::string reason = std::string(escape.name) + "() ";
  switch (escape.what) {
    case What::kMemory:
      if (!is_value(self) && !is_value(argument)) return Verdict::kPass;
      reason += "reads the memory of a tensor while the program is being recorded";
      break;
    case What::kStorage:
      if (!is_empty_storage(self) || (!session && THPStorage_Unpack(self).device().is_meta()))
        return Verdict::kPass;
      reason += "changes the memory of a tensor that has none while the program is being recorded";
      break;
    case What::kOffset:
      if (session && is_value(self)) session->reads_offsets = true;
      return Verdict::kPass;
    case What::kState:
      if (session && has_state(self, argument)) return Verdict::kNothingToDo;
      [[fallthrough]];
    case What::kSeed:
      if (!session) return Verdict::kPass;
      reason += "sets a random generator while the program is being recorded";
      break;
  }
  if (session) session->note_error(reason.c_str());
  PyErr_SetString(PyExc_RuntimeError, reason.c_str());
  return Verdict::kRaised;
}

template <class Original>
PyObject* judged(const Escape& escape, PyObject* self, PyObject* first, const Original& original) {
  switch (judge(escape, self, first)) {
    case Verdict::kRaised:
      return nullptr;
    case Verdict::kNothingToDo:
      return Py_NewRef(self);
    case Verdict::kPass:
      break;
  }
  return original();
}

template <std::size_t kIndex>
PyObject* with_keywords(PyObject* self, PyObject* arguments, PyObject* keywords) {
  PyObject* const first = arguments && PyTuple_Check(arguments) && PyTuple_GET_SIZE(arguments) > 0
                              ? PyTuple_GET_ITEM(arguments, 0)
                              : nullptr;
  return judged(kEscapes[kIndex], self, first, [&] {
    return reinterpret_cast<PyCFunctionWithKeywords>(
        reinterpret_cast<void (*)()>(g_originals[kIndex]))(self, arguments, keywords);
  });
}

template <std::size_t kIndex>
PyObject* without_keywords(PyObject* self, PyObject* argument) {
  return judged(kEscapes[kIndex], self, argument,
                [&] { return g_originals[kIndex](self, argument); });
}

// The entry is the one PyTorch's type was built from, so its identity, which TorchDynamo and others
// compare, stays.
PyMethodDef* find_method(const Escape& escape) {
  // No import, which could give up the GIL to a thread that then waits for this one.
  PyObject* name = PyUnicode_FromString("torch._C");
  PyObject* module = name ? PyImport_GetModule(name) : nullptr;
  Py_XDECREF(name);
  if (!module) return nullptr;
  PyObject* owner =
      *escape.owner ? PyObject_GetAttrString(module, escape.owner) : Py_NewRef(module);
  PyObject* method = owner ? PyObject_GetAttrString(owner, escape.name) : nullptr;
  PyMethodDef* found = nullptr;
  if (method && PyObject_TypeCheck(method, &PyMethodDescr_Type))
    found = reinterpret_cast<PyMethodDescrObject*>(method)->d_method;
  else if (method && PyCFunction_Check(method))
    found = reinterpret_cast<PyCFunctionObject*>(method)->m_ml;
  PyErr_Clear();
  // The owner keeps both alive.
  Py_XDECREF(method);
  Py_XDECREF(owner);
  Py_DECREF(module);
  return found;
}

template <std::size_t kIndex>
bool install() {
  PyMethodDef* const method = find_method(kEscapes[kIndex]);
  if (!method) return false;
  g_originals[kIndex] = method->ml_meth;
  if (method->ml_flags & METH_KEYWORDS)
    method->ml_meth =
        reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&with_keywords<kIndex>));
  else if (method->ml_flags & (METH_NOARGS | METH_O))
    method->ml_meth = &without_keywords<kIndex>;
  else
    return false;
  return true;
}

template <std::size_t... kIndices>
bool install_all(std::index_sequence<kIndices...> /*indices*/) {
  return (install<kIndices>() && ...);
}

}  // namespace

Status guard_escapes() {
  static const bool installed = install_all(std::make_index_sequence<kEscapes.size()>());
  if (installed) return {};
  return Status(Code::kUnsupported,
                "This build of torch gives access to tensors' memory in a way that the recorder "
                "does not know.");
}

}  // namespace backplane::record
