// The check of a call, made for speed: what a dict alone decides is skipped while its version
// stays.
#include <torch/csrc/autograd/python_variable.h>

#include <utility>

#include "core/torch/guards/guard_program.h"
#include "core/torch/guards/versions.h"

namespace backplane::guards {

// Whether the step holds as long as the dict that the value lies in, or is, does not change.
bool GuardProgram::depends_on_dict_alone(const Step& step) const {
  switch (step.kind) {
    case Kind::kLoad:
    case Kind::kIdentity:
    case Kind::kEquality:
      return true;
    case Kind::kType:
      return keeps_its_instances(reinterpret_cast<PyTypeObject*>(step.operand.get()));
    default:
      return false;
  }
}

// By source: an item of a dict that nothing else is found in or asked of.
std::vector<bool> GuardProgram::find_leaves() const {
  std::vector<bool> is_leaf(sources_.size());
  for (SourceId source = 0; source < sources_.size(); ++source)
    is_leaf[source] = sources_[source].kind == SourceKind::kDictItem && !is_used_[source];
  for (SourceId source = 0; source < sources_.size(); ++source)
    if (is_loaded_[source] && sources_[source].parent != kNoSource)
      is_leaf[sources_[source].parent] = false;
  for (const Step& step : steps_)
    if (step.source != kNoSource && !depends_on_dict_alone(step)) is_leaf[step.source] = false;
  return is_leaf;
}

const GuardProgram::Step* GuardProgram::find_step(Kind kind, SourceId source) const {
  const auto found = steps_of_.find(static_cast<std::uint64_t>(kind) << 32 | source);
  return found == steps_of_.end() ? nullptr : &steps_[found->second];
}

void GuardProgram::append_load(const Step& step) {
  const Source& source = sources_[step.source];
  Fast fast{.kind = source.kind == SourceKind::kPositional     ? FastKind::kPositional
                    : source.kind == SourceKind::kKeyword      ? FastKind::kKeyword
                    : source.kind == SourceKind::kConstant     ? FastKind::kConstant
                    : source.kind == SourceKind::kInstanceDict ? FastKind::kInstanceDict
                    : source.kind == SourceKind::kDictItem     ? FastKind::kItem
                                                               : FastKind::kFollow,
            .source = step.source,
            .parent = source.parent,
            .operand = source.key.get(),
            .number = source.index};
  if (const Step* type = find_step(Kind::kType, step.source)) {
    fast.type = reinterpret_cast<PyTypeObject*>(type->operand.get());
    const Step* length = find_step(Kind::kLength, step.source);
    if (length && PyType_IsSubtype(fast.type, &PyDict_Type)) fast.length = length->number;
  }
  fast_.push_back(fast);
}

void GuardProgram::append_fast(std::size_t index) {
  const Step& step = steps_[index];
  Fast fast{.kind = FastKind::kStep,
            .source = step.source,
            .operand = step.operand.get(),
            .number = step.number};
  switch (step.kind) {
    case Kind::kLoad:
      return append_load(step);
    case Kind::kType:
      return;  // with the load
    case Kind::kLength:
      if (const Step* type = find_step(Kind::kType, step.source);
          type &&
          PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type->operand.get()), &PyDict_Type))
        return;  // with the load, too
      break;
    case Kind::kIdentity:
      fast.kind = FastKind::kIdentity;
      break;
    case Kind::kSame:
      fast.kind = FastKind::kSame;
      break;
    case Kind::kDistinct:
      fast.kind = FastKind::kDistinct;
      break;
    case Kind::kTensor:
      if (find_step(Kind::kType, step.source)) fast.kind = FastKind::kTensor;
      break;
    default:
      break;
  }
  if (fast.kind == FastKind::kStep) fast.number = static_cast<std::int64_t>(index);
  fast_.push_back(fast);
}

void GuardProgram::make_fast() {
  is_loaded_.resize(sources_.size());
  is_used_.resize(sources_.size());
  dicts_.resize(sources_.size());
  in_dict_.resize(sources_.size());
  const std::vector<bool> is_leaf = find_leaves();
  const auto dict_of = [&](const Step& step) {
    if (step.source == kNoSource) return kNoSource;
    if (step.kind == Kind::kAbsence) return step.source;
    return is_leaf[step.source] ? sources_[step.source].parent : kNoSource;
  };
  std::unordered_map<SourceId, std::vector<std::size_t>> grouped;  // by dict
  std::vector<bool> has_items(sources_.size());
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (const SourceId dict = dict_of(steps_[i]); dict != kNoSource) grouped[dict].push_back(i);
    if (steps_[i].kind == Kind::kLoad && sources_[steps_[i].source].kind == SourceKind::kDictItem)
      has_items[sources_[steps_[i].source].parent] = true;
  }
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    if (dict_of(step) != kNoSource) continue;
    append_fast(i);
    if (step.kind != Kind::kLoad) continue;
    const auto group = grouped.find(step.source);
    if (group == grouped.end() && !has_items[step.source]) continue;
    fast_.back().is_dict = true;
    dict_sources_.push_back(step.source);
    if (group == grouped.end()) continue;
    const std::size_t skip = fast_.size();
    fast_.push_back({.kind = FastKind::kSkip, .source = step.source});
    for (const std::size_t member : group->second) append_fast(member);
    fast_[skip].number = static_cast<std::int64_t>(fast_.size() - skip - 1);
  }
}

void GuardProgram::note_dict(const Fast& fast, PyObject* value) {
  SeenDict& dict = dicts_[fast.source];
  dict.is_same = dict.version != 0 && PyDict_Check(value) && dict.version == version_of_dict(value);
  if (dict.is_same) return;
  if (dict.version != 0 && dict.changes < kOftenChanged) ++dict.changes;
  dict.version = 0;
  has_stale_dict_ = true;
  if (dict.changes < kOftenChanged) has_changed_dict_ = true;
}

[[gnu::always_inline]] inline bool GuardProgram::run_fast(const Fast& fast,
                                                          const CallArguments& call,
                                                          Registers& registers) {
  PyObject** values = registers.values.data();
  PyObject* value = nullptr;
  switch (fast.kind) {
    case FastKind::kPositional:
      value = call.values[fast.number];
      break;
    case FastKind::kKeyword:
      value = call.values[call.positional_count + static_cast<std::size_t>(fast.number)];
      break;
    case FastKind::kConstant:
      value = fast.operand;
      break;
    case FastKind::kInstanceDict: {
      PyObject** dict = _PyObject_GetDictPtr(values[fast.parent]);
      value = dict ? *dict : nullptr;
      break;
    }
    case FastKind::kItem:
      if (!dicts_[fast.parent].is_same)
        in_dict_[fast.source] = follow(sources_[fast.source], values[fast.parent], registers.owned);
      value = in_dict_[fast.source];
      break;
    case FastKind::kFollow:
      value = follow(sources_[fast.source],
                     fast.parent == kNoSource ? nullptr : values[fast.parent], registers.owned);
      break;
    case FastKind::kIdentity:
      return values[fast.source] == fast.operand;
    case FastKind::kSame:
      return values[fast.source] == values[fast.number];
    case FastKind::kDistinct:
      return values[fast.source] != values[fast.number];
    case FastKind::kTensor:
      return tensors_[static_cast<std::size_t>(fast.number)].check(
          *THPVariable_Unpack(values[fast.source]).unsafeGetTensorImpl());
    case FastKind::kStep:
      return run(steps_[static_cast<std::size_t>(fast.number)], call, registers);
    case FastKind::kSkip:
      return true;  // the loop's own
  }
  if (!value || (fast.type && Py_TYPE(value) != fast.type) ||
      (fast.length >= 0 && PyDict_GET_SIZE(value) != fast.length))
    return false;
  values[fast.source] = value;
  if (fast.is_dict) note_dict(fast, value);
  return true;
}

bool GuardProgram::run_found(const Fast& fast, const CallArguments& call, Registers& registers) {
  return run_fast(fast, call, registers);
}

bool GuardProgram::check_ordinarily(const CallArguments& call, Registers& registers) {
  if (fast_.empty() && !steps_.empty()) make_fast();
  has_stale_dict_ = has_changed_dict_ = false;
  for (std::size_t i = 0; i < fast_.size(); ++i) {
    const Fast& fast = fast_[i];
    if (fast.kind == FastKind::kSkip) {
      if (dicts_[fast.source].is_same) i += static_cast<std::size_t>(fast.number);
    } else if (!run_fast(fast, call, registers)) {
      return false;
    }
  }
  if (!has_stale_dict_) return true;
  for (const SourceId source : dict_sources_)
    if (PyObject* value = registers.values[source]; PyDict_Check(value))
      dicts_[source].version = version_of_dict(value);
  return true;
}

}  // namespace backplane::guards
