#include "core/torch/guards/guard_program.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "core/torch/guards/cached_call.h"
#include "core/torch/guards/content.h"
#include "core/torch/guards/same_value.h"
#include "core/torch/guards/versions.h"

namespace backplane::guards {

namespace {

using cpython::Ref;

Py_ssize_t length_of(PyObject* object) {
  if (PyTuple_Check(object)) return PyTuple_GET_SIZE(object);
  if (PyList_Check(object)) return PyList_GET_SIZE(object);
  if (PyDict_Check(object)) return PyDict_GET_SIZE(object);
  if (PyAnySet_Check(object)) return PySet_GET_SIZE(object);
  if (is_deque(object)) return Py_SIZE(object);
  return -1;
}

bool is_empty_slot(PyObject* object, PyObject* descriptor) {
  const Ref value = Ref::steal(
      Py_TYPE(descriptor)
          ->tp_descr_get(descriptor, object, reinterpret_cast<PyObject*>(Py_TYPE(object))));
  if (!value) PyErr_Clear();
  return !value;
}

bool has_keys(PyObject* dict, PyObject* keys) {
  if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(keys)) return false;
  if (PyObject_TypeCheck(dict, &PyODict_Type)) {
    const Ref ordered = ordered_keys(dict);
    for (Py_ssize_t k = 0; ordered && k < PyTuple_GET_SIZE(keys); ++k)
      if (!same_value(PyList_GET_ITEM(ordered.get(), k), PyTuple_GET_ITEM(keys, k))) return false;
    return static_cast<bool>(ordered);
  }
  Py_ssize_t position = 0, i = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value))
    if (!same_value(key, PyTuple_GET_ITEM(keys, i++))) return false;
  return true;
}

}  // namespace

GuardProgram::GuardProgram(const CallArguments& call)
    : positional_count_(call.positional_count),
      state_(ThreadState::current()),
      local_(c10::impl::tls_local_dispatch_key_set()) {
  if (!call.keyword_names) return;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call.keyword_names); ++i)
    keyword_names_.push_back(Ref::borrow(PyTuple_GET_ITEM(call.keyword_names, i)));
}

void GuardProgram::load(SourceId source) {
  if (is_used_.size() < sources_.size()) is_used_.resize(sources_.size());
  is_used_[source] = true;
  find(source);
}

void GuardProgram::find(SourceId source) {
  if (is_loaded_.size() < sources_.size()) is_loaded_.resize(sources_.size());
  const auto first = steps_.size();
  for (; source != kNoSource && !is_loaded_[source]; source = sources_[source].parent) {
    is_loaded_[source] = true;
    steps_.push_back({Kind::kLoad, source, {}, 0});
  }
  std::reverse(steps_.begin() + static_cast<std::ptrdiff_t>(first), steps_.end());
}

// False where the same guard stands already.
bool GuardProgram::add(Kind kind, SourceId source, PyObject* operand, std::int64_t number) {
  const std::uint64_t key = static_cast<std::uint64_t>(kind) << 32 | source;
  const auto [from, to] = steps_of_.equal_range(key);
  for (auto same = from; same != to; ++same)
    if ((kind != Kind::kAbsence && kind != Kind::kEmptySlot && kind != Kind::kNotCached) ||
        steps_[same->second].operand.get() == operand)
      return false;
  if (source != kNoSource) find(source);
  steps_of_.emplace(key, static_cast<std::uint32_t>(steps_.size()));
  steps_.push_back({kind, source, Ref::borrow(operand), number});
  return true;
}

void GuardProgram::guard_type(SourceId source, PyTypeObject* type) {
  add(Kind::kType, source, reinterpret_cast<PyObject*>(type));
}

void GuardProgram::guard_identity(SourceId source, PyObject* object) {
  if (sources_[source].kind == SourceKind::kConstant) return;
  add(Kind::kIdentity, source, object);
}

void GuardProgram::guard_equality(SourceId source, PyObject* object) {
  if (sources_[source].kind == SourceKind::kConstant) return;
  add(Kind::kEquality, source, object);
}

void GuardProgram::guard_content(SourceId source, PyObject* snapshot, bool is_immutable) {
  if (is_immutable && sources_[source].kind == SourceKind::kConstant) return;
  add(Kind::kContent, source, snapshot, is_immutable ? 1 : 0);
}

void GuardProgram::guard_answer(PyObject* function, PyObject* arguments, PyObject* answer) {
  for (const Answer& known : answers_)
    if (known.function.get() == function && same_items(known.arguments.get(), arguments)) return;
  steps_.push_back({Kind::kAnswer, kNoSource, {}, static_cast<std::int64_t>(answers_.size())});
  answers_.push_back({Ref::borrow(function), Ref::borrow(arguments), Ref::borrow(answer)});
}

void GuardProgram::guard_length(SourceId source, Py_ssize_t length) {
  add(Kind::kLength, source, nullptr, length);
}

void GuardProgram::guard_keys(SourceId source, PyObject* dict) {
  const Ref keys = Ref::steal(PyList_AsTuple(ordered_keys(dict).get()));
  add(Kind::kKeys, source, keys.get());
}

void GuardProgram::guard_absence(SourceId dict, PyObject* key) { add(Kind::kAbsence, dict, key); }

void GuardProgram::guard_not_cached(SourceId function, PyObject* arguments) {
  add(Kind::kNotCached, function, arguments);
}

GuardProgram::TypeAttributes& GuardProgram::attributes_of(PyTypeObject* type) {
  const auto [found, is_new] = type_index_.emplace(type, static_cast<std::uint32_t>(types_.size()));
  if (is_new) {
    types_.push_back({Ref::borrow(reinterpret_cast<PyObject*>(type)),
                      version_of_class(type),
                      Ref::borrow(type->tp_mro),
                      {},
                      {}});
    steps_.push_back({Kind::kTypeAttributes, kNoSource, {}, found->second});
  }
  return types_[found->second];
}

void GuardProgram::guard_type_attribute(PyTypeObject* type, PyObject* name, PyObject* value) {
  auto& values = attributes_of(type).values;
  for (const auto& [known, unused] : values)
    if (known.get() == name) return;
  values.emplace_back(Ref::borrow(name), Ref::borrow(value));
  if (value != nullptr) guard_special_methods(Py_TYPE(value));  // whether it is a descriptor
}

void GuardProgram::guard_special_methods(PyTypeObject* type) {
  if (const auto found = type_index_.find(type);
      found != type_index_.end() && types_[found->second].special)
    return;
  // torch.Tensor is such a class, too.
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) &&
      !PyType_HasFeature(type, Py_TPFLAGS_IMMUTABLETYPE))
    attributes_of(type).special.emplace(type);
}

void GuardProgram::guard_tensor(SourceId source, const at::Tensor& tensor) {
  // Most weights of a model are as many others: what they are compared with is shared, and near.
  constexpr std::ptrdiff_t kCompared = 32;
  TensorMatch match(tensor);
  const auto from = tensors_.end() - std::min(std::ssize(tensors_), kCompared);
  const auto same = std::find(from, tensors_.end(), match);
  if (add(Kind::kTensor, source, nullptr, same - tensors_.begin()) && same == tensors_.end())
    tensors_.push_back(std::move(match));
}

void GuardProgram::guard_function(SourceId source, PyObject* function) {
  if (!add(Kind::kFunction, source, nullptr, static_cast<std::int64_t>(functions_.size()))) return;
  functions_.push_back({Ref::borrow(PyFunction_GET_CODE(function)),
                        Ref::borrow(PyFunction_GET_GLOBALS(function)),
                        Ref::borrow(PyFunction_GET_DEFAULTS(function)),
                        Ref::borrow(PyFunction_GET_KW_DEFAULTS(function))});
}

void GuardProgram::guard_no_instance_dict(SourceId source) {
  add(Kind::kNoInstanceDict, source, nullptr);
}

void GuardProgram::guard_empty_cell(SourceId source) { add(Kind::kEmptyCell, source, nullptr); }

void GuardProgram::guard_empty_slot(SourceId owner, PyObject* descriptor) {
  add(Kind::kEmptySlot, owner, descriptor);
}

void GuardProgram::add_pair(Kind kind, SourceId a, SourceId b) {
  // No two sources are both the same and not.
  if (!pairs_.insert(static_cast<std::uint64_t>(a) << 32 | b).second) return;
  load(a);
  load(b);
  steps_.push_back({kind, a, {}, b});
}

void GuardProgram::guard_distinct(SourceId a, SourceId b) { add_pair(Kind::kDistinct, a, b); }

void GuardProgram::guard_same(SourceId a, SourceId b) { add_pair(Kind::kSame, a, b); }

void GuardProgram::guard_all_distinct(std::vector<SourceId> sources) {
  for (const SourceId source : sources) load(source);
  steps_.push_back(
      {Kind::kAllDistinct, kNoSource, {}, static_cast<std::int64_t>(distinct_.size())});
  distinct_.push_back(std::move(sources));
}

void GuardProgram::finish() {
  sources_.finish();
  pairs_ = {};
  type_index_ = {};
  steps_.shrink_to_fit();
  types_.shrink_to_fit();
  tensors_.shrink_to_fit();
  functions_.shrink_to_fit();
}

bool GuardProgram::only_fixed_since(std::size_t count) const {
  return std::all_of(steps_.begin() + static_cast<std::ptrdiff_t>(count), steps_.end(),
                     [](const Step& step) {
                       return step.kind == Kind::kLoad || step.kind == Kind::kIdentity ||
                              step.kind == Kind::kFunction || step.kind == Kind::kTypeAttributes ||
                              step.kind == Kind::kAbsence;
                     });
}

bool GuardProgram::check_shape(const CallArguments& call) const {
  const Py_ssize_t count = call.keyword_names ? PyTuple_GET_SIZE(call.keyword_names) : 0;
  if (call.positional_count != positional_count_ ||
      count != static_cast<Py_ssize_t>(keyword_names_.size()))
    return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* name = PyTuple_GET_ITEM(call.keyword_names, i);
    PyObject* expected = keyword_names_[static_cast<std::size_t>(i)].get();
    if (name != expected && PyUnicode_Compare(name, expected) != 0) return false;
  }
  return true;
}

bool GuardProgram::has_same_keys() const {
  const c10::impl::LocalDispatchKeySet now = c10::impl::tls_local_dispatch_key_set();
  return now.included_ == local_.included_ && now.excluded_ == local_.excluded_;
}

bool GuardProgram::check_answer(const Answer& answer) {
  const Ref now = Ref::steal(PyObject_Call(answer.function.get(), answer.arguments.get(), nullptr));
  if (!now) PyErr_Clear();
  if (now && PyTuple_CheckExact(now.get()) && PyTuple_CheckExact(answer.value.get()))
    return same_items(now.get(), answer.value.get());
  return now && same_value(now.get(), answer.value.get());
}

bool GuardProgram::check_types(TypeAttributes& attributes) {
  auto* type = reinterpret_cast<PyTypeObject*>(attributes.type.get());
  if (attributes.version != 0 && version_of_class(type) == attributes.version) return true;
  if (type->tp_mro != attributes.order.get()) return false;
  for (const auto& [name, value] : attributes.values)
    if (_PyType_Lookup(type, name.get()) != value.get()) return false;
  if (attributes.special && !attributes.special->are_those_of(type)) return false;
  attributes.version = version_of_class(type);
  return true;
}

bool GuardProgram::check_function(const FunctionParts& parts, PyObject* function) {
  return PyFunction_Check(function) && PyFunction_GET_CODE(function) == parts.code.get() &&
         PyFunction_GET_GLOBALS(function) == parts.globals.get() &&
         PyFunction_GET_DEFAULTS(function) == parts.defaults.get() &&
         PyFunction_GET_KW_DEFAULTS(function) == parts.keyword_defaults.get();
}

bool GuardProgram::run(const Step& step, const CallArguments& call, Registers& registers) {
  PyObject* value = step.source == kNoSource ? nullptr : registers.values[step.source];
  switch (step.kind) {
    case Kind::kLoad: {
      const Source& source = sources_[step.source];
      if (source.kind == SourceKind::kPositional)
        value = call.values[source.index];
      else if (source.kind == SourceKind::kKeyword)
        value = call.values[call.positional_count + static_cast<std::size_t>(source.index)];
      else
        value =
            follow(source, source.parent == kNoSource ? nullptr : registers.values[source.parent],
                   registers.owned);
      registers.values[step.source] = value;
      return value != nullptr;
    }
    case Kind::kType:
      return Py_TYPE(value) == reinterpret_cast<PyTypeObject*>(step.operand.get());
    case Kind::kIdentity:
      return value == step.operand.get();
    case Kind::kEquality:
      return same_value(value, step.operand.get());
    case Kind::kContent:
      return has_content(value, step.operand.get());
    case Kind::kAnswer:
      return check_answer(answers_[static_cast<std::size_t>(step.number)]);
    case Kind::kLength:
      return length_of(value) == step.number;
    case Kind::kKeys:
      return has_keys(value, step.operand.get());
    case Kind::kAbsence: {
      const bool absent =
          PyDict_Check(value) && PyDict_GetItemWithError(value, step.operand.get()) == nullptr;
      if (PyErr_Occurred()) PyErr_Clear();
      return absent;
    }
    case Kind::kNotCached:
      return is_cached_function(value) && !find_cached(value, step.operand.get());
    case Kind::kTypeAttributes:
      return check_types(types_[static_cast<std::size_t>(step.number)]);
    case Kind::kTensor:
      return is_tensor(value) && tensors_[static_cast<std::size_t>(step.number)].check(
                                     *THPVariable_Unpack(value).unsafeGetTensorImpl());
    case Kind::kFunction:
      return check_function(functions_[static_cast<std::size_t>(step.number)], value);
    case Kind::kNoInstanceDict: {
      PyObject** dict = _PyObject_GetDictPtr(value);
      return !dict || !*dict;
    }
    case Kind::kEmptyCell:
      return PyCell_Check(value) && !PyCell_GET(value);
    case Kind::kEmptySlot:
      return is_empty_slot(value, step.operand.get());
    case Kind::kSame:
      return value == registers.values[static_cast<std::size_t>(step.number)];
    case Kind::kDistinct:
      return value != registers.values[static_cast<std::size_t>(step.number)];
    case Kind::kAllDistinct: {
      std::vector<PyObject*>& found = registers.scratch;
      found.clear();
      for (const SourceId source : distinct_[static_cast<std::size_t>(step.number)])
        found.push_back(registers.values[source]);
      std::sort(found.begin(), found.end());
      return std::adjacent_find(found.begin(), found.end()) == found.end();
    }
  }
  return false;
}

void GuardProgram::prepare(Registers& registers) {
  if (registers.values.size() < sources_.size()) registers.values.resize(sources_.size());
  registers.owned.clear();
}

std::string GuardProgram::explain(const CallArguments& call) {
  if (!check_shape(call)) return "the call has other arguments than at capture";
  if (const ThreadState now = ThreadState::current(); !(now == state_)) return state_.explain(now);
  if (!has_same_keys()) return "the thread's own dispatch keys are others than at capture";
  Registers registers;
  prepare(registers);
  for (const Step& step : steps_) {
    if (run(step, call, registers)) continue;
    std::string what = step_text(step);
    if (step.kind == Kind::kTensor && is_tensor(registers.values[step.source]))
      what += "; " + tensors_[static_cast<std::size_t>(step.number)].explain(
                         THPVariable_Unpack(registers.values[step.source]));
    else if (step.kind == Kind::kEquality || step.kind == Kind::kContent)
      what += "; it is " + repr(registers.values[step.source]);
    else if (step.kind == Kind::kType)
      what += "; it is " + std::string(Py_TYPE(registers.values[step.source])->tp_name);
    return what;
  }
  return "";
}

std::string GuardProgram::step_text(const Step& step) const {
  const std::string who = step.source == kNoSource ? "" : sources_.text(step.source);
  switch (step.kind) {
    case Kind::kLoad:
      return "EXISTS " + who;
    case Kind::kType:
      return "TYPE_MATCH " + who + ": " +
             reinterpret_cast<PyTypeObject*>(step.operand.get())->tp_name;
    case Kind::kIdentity:
      return "ID_MATCH " + who + ": " + repr(step.operand.get());
    case Kind::kEquality:
      return "EQUALS_MATCH " + who + ": " + repr(step.operand.get());
    case Kind::kContent:
      return "CONTENT_MATCH " + who + ": " + repr(step.operand.get());
    case Kind::kAnswer: {
      const Answer& answer = answers_[static_cast<std::size_t>(step.number)];
      return "ANSWER " + repr(answer.function.get()) + repr(answer.arguments.get()) + ": " +
             repr(answer.value.get());
    }
    case Kind::kLength:
      return "LENGTH " + who + ": " + std::to_string(step.number);
    case Kind::kKeys:
      return "DICT_KEYS " + who + ": " + repr(step.operand.get());
    case Kind::kAbsence:
      return "ABSENT " + who + ": " + repr(step.operand.get());
    case Kind::kNotCached:
      return "NOT_CACHED " + who + call_text(step.operand.get());
    case Kind::kTypeAttributes: {
      const TypeAttributes& attributes = types_[static_cast<std::size_t>(step.number)];
      std::string text = std::string("CLASS_ATTRIBUTES ") +
                         reinterpret_cast<PyTypeObject*>(attributes.type.get())->tp_name + ":";
      for (const auto& [name, value] : attributes.values)
        text += std::string(" ") + PyUnicode_AsUTF8(name.get()) + (value ? "" : " (absent)");
      if (attributes.special) text += " (special methods)";
      return text;
    }
    case Kind::kTensor:
      return "TENSOR_MATCH " + who + ": " + tensors_[static_cast<std::size_t>(step.number)].text();
    case Kind::kFunction:
      return "FUNCTION " + who + ": code, globals, defaults";
    case Kind::kNoInstanceDict:
      return "NO_DICT " + who;
    case Kind::kEmptyCell:
      return "EMPTY_CELL " + who;
    case Kind::kEmptySlot:
      return "EMPTY_SLOT " + who + ": " + repr(step.operand.get());
    case Kind::kSame:
      return "THE_SAME " + who + ", " + sources_.text(static_cast<SourceId>(step.number));
    case Kind::kDistinct:
      return "NOT_THE_SAME " + who + ", " + sources_.text(static_cast<SourceId>(step.number));
    case Kind::kAllDistinct: {
      std::string text = "ALL_DISTINCT";
      for (const SourceId source : distinct_[static_cast<std::size_t>(step.number)])
        text += " " + sources_.text(source);
      return text;
    }
  }
  return "?";
}

std::vector<std::string> GuardProgram::text() const {
  std::vector<std::string> lines{"GLOBAL_STATE " + state_.text()};
  for (const Step& step : steps_)
    if (step.kind != Kind::kLoad) lines.push_back(step_text(step));
  return lines;
}

void GuardProgram::show_refs(cpython::OwnedRefs& out) const {
  out.show(sources_);
  for (const Step& step : steps_) out.show(step.operand);
  for (const TypeAttributes& of : types_) {
    out.show(of.type);
    out.show(of.order);
    for (const auto& [name, value] : of.values) {
      out.show(name);
      out.show(value);
    }
    if (of.special) out.show(*of.special);
  }
  for (const FunctionParts& parts : functions_)
    for (const cpython::Ref* part :
         {&parts.code, &parts.globals, &parts.defaults, &parts.keyword_defaults})
      out.show(*part);
  for (const Answer& answer : answers_)
    for (const cpython::Ref* part : {&answer.function, &answer.arguments, &answer.value})
      out.show(*part);
  out.show(keyword_names_);
}

}  // namespace backplane::guards
