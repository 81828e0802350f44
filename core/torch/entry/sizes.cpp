#include "core/torch/entry/sizes.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "core/torch/bridge/errors.h"
#include "core/torch/device/resized.h"

namespace backplane::call {

namespace {

using cpython::Ref;
using guards::SourceId;
using guards::SourceKind;

constexpr std::int64_t kSmallest = 2;  // 0 and 1 are often another program
constexpr std::size_t kEnough = 2;

struct Range {
  std::int64_t min = kSmallest, max = 0;  // max 0: any
};

// What the user said of one tensor's dims.
struct Marks {
  std::map<std::int64_t, Range> dynamic;
  std::vector<std::int64_t> weak, fixed;
};

Status refuse(const std::string& what) {
  bridge::set_error("BP-0111", Status(Code::kCancelled, what));
  return Status(Code::kCancelled, what);
}

// The integers of a set; empty where there is none.
std::vector<std::int64_t> integers_of(PyObject* set) {
  std::vector<std::int64_t> out;
  if (!set || !PyAnySet_Check(set)) return out;
  PyObject* key = nullptr;
  Py_hash_t hash = 0;
  for (Py_ssize_t at = 0; _PySet_NextEntry(set, &at, &key, &hash) != 0;)
    if (PyLong_CheckExact(key)) out.push_back(PyLong_AsLongLong(key));
  return out;
}

std::optional<std::int64_t> integer_attribute(PyObject* object, const char* name) {
  const Ref value = Ref::steal(PyObject_GetAttrString(object, name));
  PyErr_Clear();
  if (!value || !PyLong_CheckExact(value.get())) return std::nullopt;
  return PyLong_AsLongLong(value.get());
}

Result<Marks> marks_of(PyObject* object, const std::string& name) {
  Marks marks;
  PyObject** dict = _PyObject_GetDictPtr(object);
  if (!dict || !*dict) return marks;
  const std::int64_t rank = THPVariable_Unpack(object).dim();
  Status status;
  const auto dims = [&](const char* attribute) {
    std::vector<std::int64_t> found = integers_of(PyDict_GetItemString(*dict, attribute));
    for (std::int64_t& dim : found) {
      const std::int64_t given = dim;
      if (dim < 0) dim += rank;
      if (status.ok() && (dim < 0 || dim >= rank))
        status = refuse(name + " has " + std::to_string(rank) + " dims, and dim " +
                        std::to_string(given) + " is marked");
    }
    return found;
  };
  for (const std::int64_t dim : dims("_dynamo_dynamic_indices")) marks.dynamic[dim];
  marks.weak = dims("_dynamo_weak_dynamic_indices");
  for (const std::int64_t dim : dims("_dynamo_unbacked_indices")) marks.weak.push_back(dim);
  marks.fixed = dims("_dynamo_static_indices");
  BP_RETURN_IF_ERROR(status);
  PyObject* ranges = PyDict_GetItemString(*dict, "_dynamo_dynamic_range");
  if (!ranges || !PyAnySet_Check(ranges)) return marks;
  PyObject* one = nullptr;
  Py_hash_t hash = 0;
  for (Py_ssize_t at = 0; _PySet_NextEntry(ranges, &at, &one, &hash) != 0;) {
    std::int64_t dim = integer_attribute(one, "dim").value_or(-1);
    if (dim < 0) dim += rank;
    const auto found = marks.dynamic.find(dim);
    if (found == marks.dynamic.end()) continue;
    found->second.min = std::max(kSmallest, integer_attribute(one, "min").value_or(kSmallest));
    found->second.max = integer_attribute(one, "max").value_or(0);
    const std::int64_t size = THPVariable_Unpack(object).size(dim);
    if ((found->second.max != 0 && size > found->second.max) ||
        size < integer_attribute(one, "min").value_or(0))
      return refuse(name + ".shape[" + std::to_string(dim) + "] is " + std::to_string(size) +
                    ", which is not in the range that it is marked with");
  }
  return marks;
}

// Reached from an argument through containers alone: what a program works on, not what it is.
bool is_data(const guards::Sources& sources, SourceId id) {
  for (;;) {
    const guards::Source& source = sources[id];
    if (source.kind == SourceKind::kPositional || source.kind == SourceKind::kKeyword) return true;
    if (source.kind != SourceKind::kListItem && source.kind != SourceKind::kTupleItem &&
        source.kind != SourceKind::kDictItem)
      return false;
    id = source.parent;
  }
}

// Sizes that are equal now, and are taken to be equal in every call.
struct Symbol {
  std::int64_t value = 0;
  Range range;
  bool is_required = false;
  std::string text;
  std::vector<std::pair<std::size_t, std::int64_t>> dims;  // input, dim
  std::vector<std::size_t> numbers;                        // arguments
};

struct Change {
  std::int64_t factor, step, step_per_symbol;
};
// Larger ones first; a program with a largest size says no to them. Sizes that depend on each other
// change together in one of the later ones.
constexpr std::array<Change, 8> kChanges{
    {{1, 1, 2}, {1, 4, 3}, {1, -1, -2}, {1, -2, -3}, {1, 1, 0}, {1, 3, 0}, {2, 0, 0}, {3, 0, 0}}};

class Inventor {
 public:
  Inventor(capture::Captured& captured, const guards::CallArguments& call, SizeRequest request)
      : captured_(captured), call_(call), request_(std::move(request)) {}

  Result<SizeChoice> choose(const std::shared_ptr<Inventor>& self) {
    SizeChoice choice;
    guards::Registers registers;
    if (!captured_.guards->check(call_, registers)) return choice;
    const guards::Sources& sources = captured_.guards->sources();
    bool has_marks = false;
    std::vector<std::int64_t> fixed_key;  // of all sizes without a mark
    for (std::size_t i = 0; i < captured_.inputs.size(); ++i) {
      const SourceId source = captured_.inputs[i];
      PyObject* object = registers.values[source];
      reals_.push_back(THPVariable_Unpack(object));
      BP_ASSIGN_OR_RETURN(const Marks marks, marks_of(object, sources.text(source)));
      const bool is_asked = request_.dynamic == Dynamic::kAlways && !captured_.is_parameter[i] &&
                            is_data(sources, source);
      for (std::int64_t dim = 0; dim < reals_.back().dim(); ++dim) {
        const std::int64_t size = reals_.back().size(dim);
        const auto marked = marks.dynamic.find(dim);
        const bool is_fixed = std::ranges::find(marks.fixed, dim) != marks.fixed.end();
        const bool is_weak = std::ranges::find(marks.weak, dim) != marks.weak.end();
        const bool is_marked = marked != marks.dynamic.end() || is_weak;
        const std::array<std::int64_t, 3> place{static_cast<std::int64_t>(i), dim, size};
        if (!is_marked) fixed_key.insert(fixed_key.end(), place.begin(), place.end());
        has_marks |= is_marked;
        if (is_fixed && !is_marked) choice.key.insert(choice.key.end(), place.begin(), place.end());
        if (is_marked ? size == 0 : is_fixed || !is_asked || size < kSmallest) continue;
        Symbol& symbol = symbol_of(size);
        if (symbol.text.empty())
          symbol.text = sources.text(source) + ".shape[" + std::to_string(dim) + "]";
        symbol.dims.emplace_back(i, dim);
        if (marked == marks.dynamic.end()) continue;
        symbol.is_required = true;
        symbol.range.min = std::max(symbol.range.min, marked->second.min);
        if (marked->second.max != 0)
          symbol.range.max = symbol.range.max == 0 ? marked->second.max
                                                   : std::min(symbol.range.max, marked->second.max);
      }
    }
    if (request_.dynamic == Dynamic::kAlways) add_numbers();
    if (request_.dynamic == Dynamic::kNever) {
      choice.all_static = !has_marks;
      choice.key = std::move(fixed_key);
    }
    choice.examples = reals_;
    if (!symbols_.empty()) choice.invent = [self] { return self->invent(); };
    return choice;
  }

 private:
  Symbol& symbol_of(std::int64_t value) {
    for (Symbol& symbol : symbols_)
      if (symbol.value == value) return symbol;
    symbols_.emplace_back().value = value;
    return symbols_.back();
  }

  void add_numbers() {
    const std::size_t named =
        call_.keyword_names ? static_cast<std::size_t>(PyTuple_GET_SIZE(call_.keyword_names)) : 0;
    for (std::size_t i = 0; i < call_.positional_count + named; ++i) {
      if (!PyLong_CheckExact(call_.values[i])) continue;
      int overflow = 0;
      const std::int64_t value = PyLong_AsLongLongAndOverflow(call_.values[i], &overflow);
      if (overflow != 0 || value < kSmallest) continue;
      Symbol& symbol = symbol_of(value);
      if (symbol.text.empty()) symbol.text = "argument " + std::to_string(i);
      symbol.numbers.push_back(i);
    }
  }

  // Null: these sizes are no other ones, or out of range.
  std::optional<capture::Invented> values_of(std::span<const std::size_t> chosen,
                                             const Change& change) const {
    capture::Invented out;
    std::map<std::size_t, std::vector<std::int64_t>> sizes;  // by input
    for (std::size_t position = 0; position < chosen.size(); ++position) {
      const Symbol& symbol = symbols_[chosen[position]];
      const std::int64_t value = symbol.value * change.factor + change.step +
                                 change.step_per_symbol * static_cast<std::int64_t>(position);
      if (value == symbol.value || value < symbol.range.min) return std::nullopt;
      if (symbol.range.max != 0 && value > symbol.range.max) return std::nullopt;
      for (const auto& [input, dim] : symbol.dims)
        sizes.try_emplace(input, reals_[input].sizes().vec())
            .first->second[static_cast<std::size_t>(dim)] = value;
      for (const std::size_t number : symbol.numbers) out.numbers[number] = value;
    }
    for (const auto& [input, changed] : sizes) {
      std::optional<at::Tensor> made = device::resized(reals_[input], changed);
      if (!made) return std::nullopt;
      out.tensors.emplace(reals_[input].unsafeGetTensorImpl(), std::move(*made));
    }
    return out;
  }

  // Records until there are `enough`; gives why it first could not.
  Result<std::string> record(std::span<const std::size_t> chosen, std::size_t enough,
                             std::vector<record::Recorded>& out) {
    std::string reason = "no other size is in its range, or its strides have gaps";
    bool has_reason = false;
    const std::size_t before = out.size();
    for (const Change& change : kChanges) {
      if (out.size() - before >= enough) break;
      const auto invented = values_of(chosen, change);
      if (!invented) continue;
      auto captured = request_.capture_again(*invented);
      if (captured.ok()) {
        out.push_back(std::move((*captured)->recorded));
        continue;
      }
      if (captured.status().code() == Code::kCancelled) return captured.take_status();
      if (!has_reason) reason = captured.status().message();
      has_reason = true;
    }
    return out.size() > before ? std::string() : reason;
  }

  Result<std::vector<record::Recorded>> invent() {
    std::vector<record::Recorded> out;
    std::vector<std::size_t> all(symbols_.size()), changing;
    for (std::size_t s = 0; s < all.size(); ++s) all[s] = s;
    BP_ASSIGN_OR_RETURN(std::string reason, record(all, kEnough, out));
    if (reason.empty()) return out;
    for (const std::size_t s : all) {
      if (all.size() > 1) {
        BP_ASSIGN_OR_RETURN(reason, record(std::span(&s, 1), 1, out));
      }
      if (reason.empty()) {
        changing.push_back(s);
        continue;
      }
      const std::string text = symbols_[s].text + " stays " + std::to_string(symbols_[s].value) +
                               ": the program cannot be captured at other sizes: " + reason;
      if (symbols_[s].is_required && !request_.is_part) return refuse(text);
      request_.note(text);
    }
    if (changing.size() > 1) {
      BP_ASSIGN_OR_RETURN(reason, record(changing, kEnough, out));
    }
    return out;
  }

  capture::Captured& captured_;
  guards::CallArguments call_;
  SizeRequest request_;
  std::vector<at::Tensor> reals_;  // by input of the graph
  std::vector<Symbol> symbols_;
};

}  // namespace

Result<SizeChoice> choose_sizes(capture::Captured& captured, const guards::CallArguments& call,
                                SizeRequest request) {
  const auto inventor = std::make_shared<Inventor>(captured, call, std::move(request));
  return inventor->choose(inventor);
}

}  // namespace backplane::call
