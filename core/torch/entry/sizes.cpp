#include "core/torch/entry/sizes.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "core/torch/bridge/errors.h"

namespace backplane::call {

namespace {

using cpython::Ref;
using guards::SourceId;
using guards::SourceKind;

// What the user said of one tensor's dims.
struct Marks {
  std::map<std::int64_t, compiler::SizeRange> dynamic;
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
    found->second.min =
        std::max(compiler::kSmallestInvented, integer_attribute(one, "min").value_or(0));
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

// The sizes and numbers of one call that are to change.
class Symbols {
 public:
  compiler::SizeSymbol& of(std::int64_t value) {
    for (compiler::SizeSymbol& symbol : symbols_)
      if (symbol.value == value) return symbol;
    symbols_.emplace_back().value = value;
    return symbols_.back();
  }

  void add_numbers(const guards::CallArguments& call) {
    const std::size_t named =
        call.keyword_names ? static_cast<std::size_t>(PyTuple_GET_SIZE(call.keyword_names)) : 0;
    for (std::size_t i = 0; i < call.positional_count + named; ++i) {
      if (!PyLong_CheckExact(call.values[i])) continue;
      int overflow = 0;
      const std::int64_t value = PyLong_AsLongLongAndOverflow(call.values[i], &overflow);
      if (overflow != 0 || value < compiler::kSmallestInvented) continue;
      compiler::SizeSymbol& symbol = of(value);
      if (symbol.text.empty()) symbol.text = "argument " + std::to_string(i);
      symbol.numbers.push_back(i);
    }
  }

  std::vector<compiler::SizeSymbol> take() { return std::move(symbols_); }

 private:
  std::vector<compiler::SizeSymbol> symbols_;
};

void narrow(compiler::SizeRange& range, const compiler::SizeRange& by) {
  range.min = std::max(range.min, by.min);
  if (by.max != 0) range.max = range.max == 0 ? by.max : std::min(range.max, by.max);
}

compiler::SizeInventor::Note note_of(const SizeRequest& request) {
  return [request](const compiler::SizeSymbol& symbol, const std::string& reason) -> Status {
    const pybind11::gil_scoped_acquire gil;
    const std::string text = symbol.text + " stays " + std::to_string(symbol.value) +
                             ": the program cannot be captured at other sizes: " + reason;
    if (symbol.is_required && !request.is_part) return refuse(text);
    request.note(text);
    return {};
  };
}

}  // namespace

Result<ChosenSizes> choose_sizes(const capture::Captured& captured,
                                 const guards::CallArguments& call, SizeRequest request) {
  ChosenSizes chosen;
  guards::Registers registers;
  if (!captured.guards->check(call, registers)) return chosen;
  const guards::Sources& sources = captured.guards->sources();
  Symbols symbols;
  bool has_marks = false;
  std::vector<std::int64_t> fixed_key;  // of all sizes without a mark
  for (std::size_t i = 0; i < captured.inputs.size(); ++i) {
    const SourceId source = captured.inputs[i];
    PyObject* object = registers.values[source];
    const at::Tensor& tensor = chosen.examples.emplace_back(THPVariable_Unpack(object));
    BP_ASSIGN_OR_RETURN(const Marks marks, marks_of(object, sources.text(source)));
    const bool is_asked = request.dynamic == Dynamic::kAlways && !captured.is_parameter[i] &&
                          is_data(sources, source);
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
      const std::int64_t size = tensor.size(dim);
      const auto marked = marks.dynamic.find(dim);
      const bool is_fixed = std::ranges::find(marks.fixed, dim) != marks.fixed.end();
      const bool is_weak = std::ranges::find(marks.weak, dim) != marks.weak.end();
      const bool is_marked = marked != marks.dynamic.end() || is_weak;
      const std::array<std::int64_t, 3> place{static_cast<std::int64_t>(i), dim, size};
      if (!is_marked) fixed_key.insert(fixed_key.end(), place.begin(), place.end());
      has_marks |= is_marked;
      if (is_fixed && !is_marked)
        chosen.choice.key.insert(chosen.choice.key.end(), place.begin(), place.end());
      if (is_marked ? size == 0 : is_fixed || !is_asked || size < compiler::kSmallestInvented)
        continue;
      compiler::SizeSymbol& symbol = symbols.of(size);
      if (symbol.text.empty())
        symbol.text = sources.text(source) + ".shape[" + std::to_string(dim) + "]";
      symbol.dims.emplace_back(i, dim);
      if (marked == marks.dynamic.end()) continue;
      symbol.is_required = true;
      narrow(symbol.range, marked->second);
    }
  }
  if (request.dynamic == Dynamic::kAlways) symbols.add_numbers(call);
  if (request.dynamic == Dynamic::kNever) {
    chosen.choice.all_static = !has_marks;
    chosen.choice.key = std::move(fixed_key);
  }
  std::vector<compiler::SizeSymbol> changing = symbols.take();
  if (changing.empty()) return chosen;
  chosen.choice.inventor.emplace(chosen.examples, std::move(changing));
  chosen.choice.note = note_of(request);
  chosen.choice.record = [request, reals = chosen.examples](
                             const compiler::InventedSizes& sizes) -> Result<record::Recorded> {
    const pybind11::gil_scoped_acquire gil;
    capture::Invented invented;
    for (const auto& [input, tensor] : sizes.tensors)
      invented.tensors.emplace(reals[input].unsafeGetTensorImpl(), tensor);
    invented.numbers.insert(sizes.numbers.begin(), sizes.numbers.end());
    BP_ASSIGN_OR_RETURN(const auto captured_again, request.capture_again(invented));
    return std::move(captured_again->recorded);
  };
  return chosen;
}

}  // namespace backplane::call
