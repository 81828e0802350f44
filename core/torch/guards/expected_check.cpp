// The check of a call that expects what the last checks found. An object that an unchanged dict
// holds is the same one, at the same address: what it is asked needs no way to it.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "core/torch/guards/guard_program.h"
#include "core/torch/guards/versions.h"

namespace backplane::guards {

namespace {

// After as many checks that held, what was expected is no longer held against the program.
constexpr std::uint32_t kManyHits = 64;
constexpr std::uint32_t kMostPatience = 1023;

bool has_version(void* dict, std::uint64_t version) {
  return version_of_dict(static_cast<PyObject*>(dict)) == version;
}

}  // namespace

// Reads the registers of a check that held while no dict changed.
struct GuardProgram::ExpectationBuilder {
  GuardProgram& program;
  const std::vector<PyObject*>& values;
  std::vector<bool> is_held, is_versioned, is_read;  // by source

  ExpectationBuilder(GuardProgram& program, const Registers& registers)
      : program(program),
        values(registers.values),
        is_held(program.sources_.size()),
        is_versioned(program.sources_.size()),
        is_read(program.is_used_) {}

  void append(Expected expected) { program.expected_.push_back(expected); }

  void append_fast(std::size_t index) {
    const Fast& fast = program.fast_[index];
    append({.kind = ExpectedKind::kFast, .number = index});
    for (const SourceId source : {fast.source, fast.parent})
      if (source != kNoSource) is_read[source] = true;
    if (fast.kind == FastKind::kSame || fast.kind == FastKind::kDistinct)
      is_read[static_cast<std::size_t>(fast.number)] = true;
    if (fast.kind != FastKind::kStep) return;
    const Step& step = program.steps_[static_cast<std::size_t>(fast.number)];
    if (step.kind == Kind::kAllDistinct)
      for (const SourceId source : program.distinct_[static_cast<std::size_t>(step.number)])
        is_read[source] = true;
  }

  bool has_stable_version(const Fast& fast) const {
    const SeenDict& dict = program.dicts_[fast.source];
    PyObject* value = values[fast.source];
    return fast.is_dict && dict.changes < kOftenChanged && dict.version != 0 &&
           PyDict_Check(value) && version_of_dict(value) == dict.version;
  }

  // Whether the value cannot be another than the last check found.
  bool is_same_object(const Fast& fast) const {
    if (fast.kind == FastKind::kConstant) return true;
    if (fast.kind == FastKind::kItem) return is_versioned[fast.parent];
    if (fast.kind != FastKind::kFollow || fast.parent == kNoSource || !is_held[fast.parent])
      return false;
    switch (program.sources_[fast.source].kind) {
      case SourceKind::kTupleItem:
      case SourceKind::kClosure:
      case SourceKind::kMethodSelf:
      case SourceKind::kMethodFunction:
        return true;
      case SourceKind::kDefault:  // the guard of the function keeps the tuple
        return program.find_step(Kind::kFunction, fast.parent) != nullptr;
      default:
        return false;
    }
  }

  void append_load(std::size_t index) {
    const Fast& fast = program.fast_[index];
    PyObject* value = values[fast.source];
    const bool stable = has_stable_version(fast);
    const std::uint64_t version = stable ? version_of_dict(value) : 0;
    is_versioned[fast.source] = stable;
    const bool same_object = is_same_object(fast);
    if (fast.kind == FastKind::kInstanceDict && is_held[fast.parent] && stable) {
      append({ExpectedKind::kInstanceDict, fast.source, _PyObject_GetDictPtr(values[fast.parent]),
              value, version});
      return;
    }
    is_held[fast.source] = same_object;
    if (!same_object) {
      append_fast(index);
      if (stable) append({ExpectedKind::kFoundDict, fast.source, nullptr, value, version});
      return;
    }
    if (fast.type && !keeps_its_instances(fast.type))
      append({ExpectedKind::kType, fast.source, value, fast.type, 0});
    if (stable)
      append({ExpectedKind::kDict, fast.source, value, nullptr, version});
    else if (fast.length >= 0)
      append({ExpectedKind::kLength, fast.source, value, nullptr,
              static_cast<std::uint64_t>(fast.length)});
  }

  void append_distinct(std::size_t index, const std::vector<SourceId>& sources) {
    ExpectedDistinct distinct;
    for (const SourceId source : sources)
      if (is_held[source])
        distinct.held.push_back(values[source]);
      else
        distinct.found.push_back(source);
    if (distinct.found.size() > distinct.held.size()) return append_fast(index);
    if (distinct.found.empty()) return;
    for (const SourceId source : distinct.found) is_read[source] = true;
    std::sort(distinct.held.begin(), distinct.held.end());
    append({.kind = ExpectedKind::kDistinct, .number = program.expected_distinct_.size()});
    program.expected_distinct_.push_back(std::move(distinct));
  }

  void append_step(std::size_t index, const Step& step) {
    const bool held = step.source != kNoSource && is_held[step.source];
    const auto number = static_cast<std::uint64_t>(step.number);
    switch (step.kind) {
      case Kind::kTypeAttributes: {
        auto* type = reinterpret_cast<PyTypeObject*>(
            program.types_[static_cast<std::size_t>(number)].type.get());
        if (const unsigned int version = version_of_class(type); version != 0)
          return append({ExpectedKind::kClass, kNoSource, type, nullptr, version});
        break;
      }
      case Kind::kFunction:
        if (held)
          return append(
              {ExpectedKind::kFunction, step.source, values[step.source], nullptr, number});
        break;
      case Kind::kEquality:
        if (held) return;  // of what cannot change
        break;
      case Kind::kKeys:
        if (is_versioned[step.source] && PyDict_CheckExact(values[step.source])) return;
        break;
      case Kind::kAbsence:
        if (is_versioned[step.source]) return;
        break;
      case Kind::kAllDistinct:
        return append_distinct(index, program.distinct_[static_cast<std::size_t>(number)]);
      default:
        break;
    }
    append_fast(index);
  }

  void append_any(std::size_t index) {
    const Fast& fast = program.fast_[index];
    const auto number = static_cast<std::size_t>(fast.number);
    switch (fast.kind) {
      case FastKind::kSkip:
        return;  // where the dict has no version: its members follow
      case FastKind::kIdentity:
        return is_held[fast.source] ? void() : append_fast(index);
      case FastKind::kSame:
      case FastKind::kDistinct:
        return is_held[fast.source] && is_held[number] ? void() : append_fast(index);
      case FastKind::kTensor:
        if (!is_held[fast.source]) return append_fast(index);
        return append({ExpectedKind::kTensor, fast.source, values[fast.source], nullptr, number});
      case FastKind::kStep:
        return append_step(index, program.steps_[number]);
      default:
        return append_load(index);
    }
  }

  // What is asked as ever costs a little more here than in an ordinary check.
  bool is_worth_it() const {
    const auto as_ever =
        std::count_if(program.expected_.begin(), program.expected_.end(),
                      [](const Expected& e) { return e.kind == ExpectedKind::kFast; });
    return static_cast<std::size_t>(as_ever) * 2 <= program.fast_.size();
  }

  void build() {
    program.expected_.clear();
    program.expected_distinct_.clear();
    program.expected_values_.clear();
    for (std::size_t i = 0; i < program.fast_.size(); ++i) {
      const Fast& fast = program.fast_[i];
      if (fast.kind == FastKind::kSkip && is_versioned[fast.source])
        i += static_cast<std::size_t>(fast.number);
      else
        append_any(i);
    }
    if (!is_worth_it()) return program.expected_.clear();
    for (SourceId source = 0; source < is_read.size(); ++source)
      if (is_read[source] && program.is_loaded_[source])
        program.expected_values_.emplace_back(source, values[source]);
  }
};

GuardProgram::Outcome GuardProgram::holds(const Expected& expected, const CallArguments& call,
                                          Registers& registers) {
  const auto known = [](bool holds) { return holds ? Outcome::kHolds : Outcome::kFails; };
  const auto unchanged = [](bool holds) { return holds ? Outcome::kHolds : Outcome::kUnknown; };
  switch (expected.kind) {
    case ExpectedKind::kType:
      return known(Py_TYPE(static_cast<PyObject*>(expected.address)) == expected.value);
    case ExpectedKind::kInstanceDict: {
      PyObject* dict = *static_cast<PyObject**>(expected.address);
      return unchanged(dict == expected.value && has_version(dict, expected.number));
    }
    case ExpectedKind::kDict:
      return unchanged(has_version(expected.address, expected.number));
    case ExpectedKind::kLength:
      return known(PyDict_GET_SIZE(static_cast<PyObject*>(expected.address)) ==
                   static_cast<Py_ssize_t>(expected.number));
    case ExpectedKind::kFoundDict: {
      PyObject* dict = registers.values[expected.source];
      return unchanged(dict == expected.value && has_version(dict, expected.number));
    }
    case ExpectedKind::kClass:
      return unchanged(version_of_class(static_cast<PyTypeObject*>(expected.address)) ==
                       expected.number);
    case ExpectedKind::kTensor:
      return known(tensors_[expected.number].check(
          *THPVariable_Unpack(static_cast<PyObject*>(expected.address)).unsafeGetTensorImpl()));
    case ExpectedKind::kFunction:
      return known(
          check_function(functions_[expected.number], static_cast<PyObject*>(expected.address)));
    case ExpectedKind::kDistinct: {
      const ExpectedDistinct& distinct = expected_distinct_[expected.number];
      for (std::size_t i = 0; i < distinct.found.size(); ++i) {
        PyObject* value = registers.values[distinct.found[i]];
        if (std::binary_search(distinct.held.begin(), distinct.held.end(), value))
          return Outcome::kFails;
        for (std::size_t other = 0; other < i; ++other)
          if (registers.values[distinct.found[other]] == value) return Outcome::kFails;
      }
      return Outcome::kHolds;
    }
    case ExpectedKind::kFast:
      return known(run_found(fast_[expected.number], call, registers));
  }
  return Outcome::kUnknown;
}

GuardProgram::Outcome GuardProgram::check_expected(const CallArguments& call,
                                                   Registers& registers) {
  for (const auto& [source, value] : expected_values_) registers.values[source] = value;
  for (const Expected& expected : expected_)
    if (const Outcome outcome = holds(expected, call, registers); outcome != Outcome::kHolds)
      return outcome;
  return Outcome::kHolds;
}

void GuardProgram::expect(const Registers& registers) {
  if (checks_until_expecting_ > 0) {
    --checks_until_expecting_;
    return;
  }
  ExpectationBuilder(*this, registers).build();
  expected_hits_ = 0;
  if (expected_.empty()) checks_until_expecting_ = kMostPatience;
}

bool GuardProgram::check(const CallArguments& call, Registers& out_registers) {
  if (!check_shape(call) || !has_same_keys() || !(ThreadState::current() == state_)) return false;
  prepare(out_registers);
  const bool expects = !expected_.empty();
  if (expects) {
    const Outcome outcome = check_expected(call, out_registers);
    if (outcome == Outcome::kHolds) ++expected_hits_;
    if (outcome != Outcome::kUnknown) return outcome == Outcome::kHolds;
    out_registers.owned.clear();
  }
  if (!check_ordinarily(call, out_registers)) return false;
  if (expects) {
    patience_ = expected_hits_ > kManyHits ? 0 : std::min(patience_ * 2 + 1, kMostPatience);
    checks_until_expecting_ = patience_;
    expected_.clear();
  }
  if (!has_changed_dict_) expect(out_registers);
  return true;
}

}  // namespace backplane::guards
