// The check of a call that expects what the last checks found. An object that an unchanged dict
// holds is the same one, at the same address: what it is asked needs no way to it.
#include <torch/csrc/autograd/python_variable.h>

#include <structmember.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "core/torch/guards/guard_program.h"
#include "core/torch/guards/versions.h"

namespace backplane::guards {

namespace {

// After as many checks that held, what was expected is no longer held against the program.
constexpr std::uint32_t kManyHits = 64;
constexpr std::uint32_t kMostPatience = 1023;

std::uint64_t word_at(const void* address) {
  std::uint64_t word;
  std::memcpy(&word, address, sizeof word);
  return word;
}

// What a slot of a class, or of a structure of C, reads; null where no object lies there as it is.
PyObject** slot_of(PyObject* object, PyObject* descriptor) {
  if (Py_TYPE(descriptor) != &PyMemberDescr_Type) return nullptr;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
  if (member->type != T_OBJECT && member->type != T_OBJECT_EX) return nullptr;
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + member->offset);
}

}  // namespace

// Reads the registers of a check that held while no dict changed.
struct GuardProgram::ExpectationBuilder {
  GuardProgram& program;
  const std::vector<PyObject*>& values;
  std::vector<bool> is_held, is_versioned, is_read;  // by source
  std::unordered_set<const void*> kept, addresses;
  Expectation made;

  ExpectationBuilder(GuardProgram& program, const Registers& registers)
      : program(program),
        values(registers.values),
        is_held(program.sources_.size()),
        is_versioned(program.sources_.size()),
        is_read(program.is_used_) {
    keep_operands();
  }

  // What the guards themselves keep alive: nothing else comes to such an address.
  void keep_operands() {
    for (const Step& step : program.steps_) kept.insert(step.operand.get());
    for (const TypeAttributes& attributes : program.types_)
      for (const auto& [name, value] : attributes.values) kept.insert(value.get());
    for (const FunctionParts& parts : program.functions_)
      kept.insert({parts.code.get(), parts.defaults.get(), parts.keyword_defaults.get()});
  }

  void append(Expected expected) { made.steps.push_back(expected); }

  void append_word(const void* address) {
    if (!addresses.insert(address).second) return;
    made.words.push_back({address, word_at(address)});
    if (made.steps.empty() || made.steps.back().kind != ExpectedKind::kWords)
      append({.kind = ExpectedKind::kWords});
    made.steps.back().number = made.words.size();
  }
  void append_type(PyObject* object) { append_word(&object->ob_type); }
  void append_version(PyObject* dict) { append_word(address_of_version(dict)); }

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

  // Whether the value cannot be another than the last check found, once the words appended here are
  // the same.
  bool expect_same_object(const Fast& fast) {
    if (fast.kind == FastKind::kConstant) return true;
    if (fast.kind == FastKind::kItem) return is_versioned[fast.parent];
    if (fast.kind != FastKind::kFollow || fast.parent == kNoSource || !is_held[fast.parent])
      return false;
    const Source& source = program.sources_[fast.source];
    PyObject* parent = values[fast.parent];
    PyObject* value = values[fast.source];
    const bool is_kept = kept.contains(value);
    switch (source.kind) {
      case SourceKind::kTupleItem:
      case SourceKind::kClosure:
      case SourceKind::kMethodSelf:
      case SourceKind::kMethodFunction:
        return true;
      case SourceKind::kDefault:  // the guard of the function keeps the tuple
        return program.find_step(Kind::kFunction, fast.parent) != nullptr;
      case SourceKind::kKeywordDefault:  // and the dict
        if (!program.find_step(Kind::kFunction, fast.parent)) return false;
        append_version(PyFunction_GET_KW_DEFAULTS(parent));
        return true;
      case SourceKind::kCellContent:
        if (is_kept) append_word(&reinterpret_cast<PyCellObject*>(parent)->ob_ref);
        return is_kept;
      case SourceKind::kSlot: {
        PyObject** slot = slot_of(parent, source.key.get());
        if (!slot || !is_kept || !program.find_step(Kind::kType, fast.parent)) return false;
        append_word(slot);
        return true;
      }
      default:
        return false;
    }
  }

  void append_load(std::size_t index) {
    const Fast& fast = program.fast_[index];
    PyObject* value = values[fast.source];
    const bool stable = has_stable_version(fast);
    is_versioned[fast.source] = stable;
    if (fast.kind == FastKind::kInstanceDict && is_held[fast.parent] && stable) {
      append_word(_PyObject_GetDictPtr(values[fast.parent]));
      append_version(value);
      return;
    }
    is_held[fast.source] = expect_same_object(fast);
    if (!is_held[fast.source]) {
      append_fast(index);
      if (stable) append({ExpectedKind::kFoundDict, fast.source, value, version_of_dict(value)});
      return;
    }
    // Its items are found anew where it changes, which its own load sees.
    if (fast.is_dict && !stable) return append_fast(index);
    if (fast.type && !keeps_its_instances(fast.type)) append_type(value);
    if (stable)
      append_version(value);
    else if (fast.length >= 0)
      append_word(&reinterpret_cast<PyDictObject*>(value)->ma_used);
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
    append({.kind = ExpectedKind::kDistinct, .number = made.distinct.size()});
    made.distinct.push_back(std::move(distinct));
  }

  // A function cannot be given other globals.
  void append_function(PyObject* object) {
    auto* function = reinterpret_cast<PyFunctionObject*>(object);
    append_word(&function->func_code);
    append_word(&function->func_defaults);
    append_word(&function->func_kwdefaults);
  }

  void append_step(std::size_t index, const Step& step) {
    const bool held = step.source != kNoSource && is_held[step.source];
    const auto number = static_cast<std::uint64_t>(step.number);
    switch (step.kind) {
      case Kind::kTypeAttributes: {
        auto* type = reinterpret_cast<PyTypeObject*>(
            program.types_[static_cast<std::size_t>(number)].type.get());
        if (const unsigned int version = version_of_class(type); version != 0)
          return made.classes.push_back({type, version});
        break;
      }
      case Kind::kFunction:
        if (held) return append_function(values[step.source]);
        break;
      case Kind::kEquality:
        if (held) return;  // of what cannot change
        break;
      case Kind::kContent:
        if (held && step.number != 0) return;
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
        made.tensors.emplace_back(values[fast.source], static_cast<std::uint32_t>(number));
        return;
      case FastKind::kStep:
        return append_step(index, program.steps_[number]);
      default:
        return append_load(index);
    }
  }

  // What is asked as ever costs a little more here than in an ordinary check.
  bool is_worth_it() const {
    const auto as_ever = std::count_if(made.steps.begin(), made.steps.end(), [](const Expected& e) {
      return e.kind == ExpectedKind::kFast;
    });
    return static_cast<std::size_t>(as_ever) * 2 <= program.fast_.size();
  }

  std::optional<Expectation> build() {
    for (std::size_t i = 0; i < program.fast_.size(); ++i) {
      const Fast& fast = program.fast_[i];
      if (fast.kind == FastKind::kSkip && is_versioned[fast.source])
        i += static_cast<std::size_t>(fast.number);
      else
        append_any(i);
    }
    if (!is_worth_it()) return std::nullopt;
    for (SourceId source = 0; source < is_read.size(); ++source)
      if (is_read[source] && program.is_loaded_[source])
        made.values.emplace_back(source, values[source]);
    return std::move(made);
  }
};

GuardProgram::Outcome GuardProgram::check_expected(const CallArguments& call,
                                                   Registers& registers) {
  // A slot that makes an object may start the garbage collector, and so a call of this program.
  Expectation expectation = std::move(*expected_);
  expected_.reset();
  const Outcome outcome = [&] {
    for (const ExpectedClass& expected : expectation.classes)
      if (version_of_class(expected.type) != expected.version) return Outcome::kUnknown;
    for (const auto& [source, value] : expectation.values) registers.values[source] = value;
    const ExpectedWord* word = expectation.words.data();
    for (const Expected& expected : expectation.steps) {
      switch (expected.kind) {
        case ExpectedKind::kWords:
          for (const ExpectedWord* end = expectation.words.data() + expected.number; word != end;
               ++word)
            if (word_at(word->address) != word->value) return Outcome::kUnknown;
          break;
        case ExpectedKind::kFoundDict: {
          PyObject* dict = registers.values[expected.source];
          if (dict != expected.value || version_of_dict(dict) != expected.number)
            return Outcome::kUnknown;
          break;
        }
        case ExpectedKind::kDistinct:
          if (!is_distinct(expectation.distinct[expected.number], registers))
            return Outcome::kFails;
          break;
        case ExpectedKind::kFast:
          if (!run_found(fast_[expected.number], call, registers)) return Outcome::kFails;
          break;
      }
    }
    return all_match(expectation.tensors, tensors_) ? Outcome::kHolds : Outcome::kFails;
  }();
  expected_ = std::move(expectation);
  return outcome;
}

bool GuardProgram::is_distinct(const ExpectedDistinct& distinct, const Registers& registers) {
  for (std::size_t i = 0; i < distinct.found.size(); ++i) {
    PyObject* value = registers.values[distinct.found[i]];
    if (std::binary_search(distinct.held.begin(), distinct.held.end(), value)) return false;
    for (std::size_t other = 0; other < i; ++other)
      if (registers.values[distinct.found[other]] == value) return false;
  }
  return true;
}

void GuardProgram::expect(const Registers& registers) {
  if (checks_until_expecting_ > 0) {
    --checks_until_expecting_;
    return;
  }
  expected_ = ExpectationBuilder(*this, registers).build();
  expected_hits_ = 0;
  if (!expected_) checks_until_expecting_ = kMostPatience;
}

bool GuardProgram::check(const CallArguments& call, Registers& out_registers) {
  if (!check_shape(call) || !has_same_keys() || !(ThreadState::current() == state_)) return false;
  prepare(out_registers);
  const bool expects = expected_.has_value();
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
    expected_.reset();
  }
  if (!has_changed_dict_) expect(out_registers);
  return true;
}

}  // namespace backplane::guards
