#include "core/torch/guards/special_methods.h"

#include <sstream>
#include <string>

namespace backplane::guards {
namespace {

using cpython::Ref;

constexpr const char* kNames =
    // objects
    "new init call repr str hash format bool bytes complex sizeof dir del "
    "getattribute getattr setattr delattr get set delete set_name "
    "copy deepcopy reduce reduce_ex getstate setstate getnewargs getnewargs_ex "
    // classes
    "class_getitem instancecheck subclasscheck subclasshook mro_entries prepare init_subclass "
    // comparisons
    "lt le eq ne gt ge "
    // containers and iterators
    "len length_hint getitem setitem delitem missing contains iter next reversed "
    // numbers
    "add radd iadd sub rsub isub mul rmul imul matmul rmatmul imatmul truediv rtruediv itruediv "
    "floordiv rfloordiv ifloordiv mod rmod imod divmod rdivmod pow rpow ipow "
    "lshift rlshift ilshift rshift rrshift irshift and rand iand or ror ior xor rxor ixor "
    "neg pos abs invert int float index round trunc floor ceil "
    // contexts, coroutines, paths
    "enter exit aenter aexit await aiter anext fspath "
    // PyTorch and NumPy
    "torch_function array array_ufunc array_function array_interface array_struct array_priority "
    "array_wrap dlpack cuda_array_interface";

const std::vector<Ref>& names() {
  // Never destroyed: the interpreter ends before the library does.
  static const auto* const made = [] {
    auto* out = new std::vector<Ref>;
    std::istringstream words(kNames);
    for (std::string word; words >> word;)
      out->push_back(Ref::steal(PyUnicode_InternFromString(("__" + word + "__").c_str())));
    return out;
  }();
  return *made;
}

}  // namespace

SpecialMethods::SpecialMethods(PyTypeObject* type)
    : is_abstract_(PyType_HasFeature(type, Py_TPFLAGS_IS_ABSTRACT)) {
  methods_.reserve(names().size());
  for (const Ref& name : names()) methods_.push_back(Ref::borrow(_PyType_Lookup(type, name.get())));
}

bool SpecialMethods::are_those_of(PyTypeObject* type) const {
  if (PyType_HasFeature(type, Py_TPFLAGS_IS_ABSTRACT) != static_cast<int>(is_abstract_))
    return false;
  for (std::size_t i = 0; i < methods_.size(); ++i)
    if (_PyType_Lookup(type, names()[i].get()) != methods_[i].get()) return false;
  return true;
}

}  // namespace backplane::guards
