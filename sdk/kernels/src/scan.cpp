// Running sums and their kin along a dim, and sorting along one. One work-item takes one line: sums
// are the same in every run, and sorting is stable.
#include <functional>

#include "registry.hpp"

namespace backplane::kernels {
namespace {

using kernelgen::Type;

std::string number(std::int64_t v) { return std::to_string(v) + "L"; }
bool has_nan(Storage storage) { return kernelgen::is_float(storage); }
// What elements are compared in.
std::string compute_name(Storage storage) {
  switch (kernelgen::compute_type(storage)) {
    case Type::kF32:
      return "float";
    case Type::kF64:
      return "double";
    case Type::kI64:
      return "long";
    default:
      return "int";
  }
}

// The lines of operand 0 along its dim, and of the results, which have the same other dims.
class Lines {
 public:
  static Result<Lines> make(Builder& builder) {
    auto in = builder.operand(0);
    if (!in.ok()) return in.status();
    Lines lines(builder);
    const std::size_t rank = in->dims.size();
    const auto dim = static_cast<std::size_t>(wrap_dim(builder.step().int_or("dim", -1), rank));
    lines.add(*in, dim, "x");
    lines.length_ = rank == 0 ? 1 : in->dims[dim];
    lines.others_ = in->dims;
    if (rank != 0) lines.others_.erase(lines.others_.begin() + static_cast<std::ptrdiff_t>(dim));
    for (std::size_t r = 0; r < builder.step().step().results.size(); ++r)
      if (builder.wants(r)) lines.add(builder.result(r), dim, r == 0 ? "y" : "z");
    return lines;
  }

  Storage storage() const { return tensors_[0].storage; }
  std::int64_t length() const { return length_; }
  std::int64_t count() const { return product(others_); }
  bool wants(const char* name) const { return find(name) != nullptr; }
  std::string load(const std::string& at) const {
    const Tensor& x = tensors_[0];
    return element_load(x.storage, "x", "at_x + " + at + " * " + number(x.step));
  }
  // What another type keeps of the element: as a conversion before gives it.
  std::string load_as(Storage type, const std::string& at) const {
    const std::string x = load(at);
    if (type == storage() || !kernelgen::is_float(type)) return x;
    if (type == Storage::kBF16) return "bp_from_bf16_1(bp_to_bf16_1((float)" + x + "))";
    if (type == Storage::kF16) return "bp_round_f16_1((float)" + x + ")";
    return type == Storage::kF32 ? "(float)" + x : x;
  }
  // Nothing where nobody asked for the result.
  std::string store(const char* name, const std::string& at, const std::string& value) const {
    const Tensor* t = find(name);
    if (t == nullptr) return {};
    return element_store(t->storage, name,
                         "at_" + std::string(name) + " + " + at + " * " + number(t->step), value) +
           ";\n";
  }
  // Dense memory of `elements` a line, as a pointer to those of this line.
  void add_scratch(Storage storage, std::int64_t elements, const char* name) {
    const TensorView view = builder_.scratch(storage, {count() * elements});
    tensors_.push_back({view.argument, storage, name, elements, {}, true});
  }

  // The kernel whose `body` handles one line.
  void launch(const std::string& body) {
    if (count() * length_ == 0) return;
    std::string parameters, declarations;
    std::vector<Argument> arguments;
    for (const Tensor& t : tensors_) {
      const std::string n = t.name, type = "BP_GLOBAL " + std::string(element_type(t.storage));
      if (!parameters.empty()) parameters += ", ";
      parameters.append("BP_GLOBAL uchar* b").append(n).append(", ulong o").append(n);
      declarations.append("  ").append(type).append("* ").append(n).append(" = (").append(type);
      declarations.append("*)(b").append(n).append(" + o").append(n).append(")");
      if (t.is_scratch) declarations.append(" + line * ").append(number(t.step));
      declarations += ";\n";
      if (!t.is_scratch) declarations += "  long at_" + n + " = 0;\n";
      arguments.push_back(t.argument);
    }
    std::string decode;
    for (std::size_t i = others_.size(); i-- > 0;) {
      if (others_[i] == 1) continue;
      decode += "  { const long i = rest % " + number(others_[i]) + ";";
      for (const Tensor& t : tensors_)
        if (!t.is_scratch) decode += " at_" + t.name + " += i * " + number(t.strides[i]) + ";";
      decode += " rest /= " + number(others_[i]) + "; }\n";
    }
    const auto group = static_cast<std::size_t>(
        builder_.facts().gpu ? std::min<std::int64_t>(builder_.schedule().group_size, 64) : 1);
    const auto items = (static_cast<std::size_t>(count()) + group - 1) / group * group;
    builder_.launch(kernelgen::name_entry(
                        "BP_KERNEL BP_ENTRY(BP_ITEM " + parameters +
                        ") {\n  BP_BEGIN\n  const long line = (long)BP_ID(0);\n  if (line >= " +
                        number(count()) + ") return;\n" + declarations + "  long rest = line;\n" +
                        decode + body + "}\n"),
                    std::move(arguments), {items, 1, 1}, {group, 1, 1});
  }

 private:
  struct Tensor {
    Argument argument;
    Storage storage;
    std::string name;
    std::int64_t step;  // between elements of a line; of scratch memory, between lines
    Shape strides;      // of the other dims
    bool is_scratch = false;
  };
  explicit Lines(Builder& builder) : builder_(builder) {}
  void add(const TensorView& view, std::size_t dim, const char* name) {
    Tensor t{view.argument, view.storage, name, 0, view.strides};
    if (!t.strides.empty()) {
      t.step = t.strides[dim];
      t.strides.erase(t.strides.begin() + static_cast<std::ptrdiff_t>(dim));
    }
    tensors_.push_back(std::move(t));
  }
  const Tensor* find(const char* name) const {
    for (const Tensor& t : tensors_)
      if (t.name == name) return &t;
    return nullptr;
  }

  Builder& builder_;
  std::vector<Tensor> tensors_;
  Shape others_;
  std::int64_t length_ = 0;
};

// What sums are kept in: wider than the elements where the device can.
std::string running_type(const Builder& b, Storage storage) {
  if (!kernelgen::is_float(storage)) return "long";
  return b.facts().has_fp64 ? "double" : "float";
}

// `next`: of `run` and `v`.
Status scan(Builder& b, const char* start, const char* next) {
  auto lines = Lines::make(b);
  if (!lines.ok()) return lines.status();
  const std::string type = running_type(b, b.result().storage);
  // A line may run in a wider type than its elements; its result may be of another type again.
  const std::string value = kernelgen::is_float(b.result().storage) ? "(float)run" : "run";
  const bool exact = b.result().storage == Storage::kF64;
  lines->launch("  " + type + " run = " + start + ";\n  for (long i = 0; i < " +
                number(lines->length()) + "; ++i) {\n    const " + type + " v = (" + type + ")" +
                lines->load_as(b.result().storage, "i") + ";\n    run = " + next + ";\n    " +
                lines->store("y", "i", exact ? "run" : value) + "  }\n");
  return {};
}
Status cumsum(Builder& b) { return scan(b, "0", "run + v"); }
Status cumprod(Builder& b) { return scan(b, "1", "run * v"); }
Status logcumsumexp(Builder& b) {
  return scan(b, "-BP_INFINITY",
              "(run != run || v != v) ? run + v : isinf(BP_MAX(run, v)) ? BP_MAX(run, v) : "
              "BP_MAX(run, v) + log1p(exp(BP_MIN(run, v) - BP_MAX(run, v)))");
}

// The largest or smallest so far, and where it was; of equal ones the last.
Status extremes(Builder& b, const char* op) {
  auto lines = Lines::make(b);
  if (!lines.ok()) return lines.status();
  const std::string type = compute_name(lines->storage());
  const std::string v_is_nan = has_nan(lines->storage()) ? "v != v || " : "",
                    run_is_number = has_nan(lines->storage()) ? "run == run && " : "";
  lines->launch("  " + type + " run = " + lines->load("0L") +
                ";\n  long where = 0;\n  for (long i = 0; i < " + number(lines->length()) +
                "; ++i) {\n    const " + type + " v = " + lines->load("i") + ";\n    if (" +
                v_is_nan + "(" + run_is_number + "v " + op +
                " run)) { run = v; where = i; }\n    " + lines->store("y", "i", "run") + "    " +
                lines->store("z", "i", "where") + "  }\n");
  return {};
}
Status cummax(Builder& b) { return extremes(b, ">="); }
Status cummin(Builder& b) { return extremes(b, "<="); }

// Merges runs of doubling length from one half of the scratch memory into the other, then calls
// for what `out` says of the values `from` and positions `where` in order.
Status order(Builder& b, bool descending, const std::function<std::string(const Lines&)>& out) {
  auto lines = Lines::make(b);
  if (!lines.ok()) return lines.status();
  const std::int64_t n = lines->length();
  if (n > INT32_MAX) return {BP_UNSUPPORTED, "lines of more than 2^31 elements are not sorted"};
  const std::string type = compute_name(lines->storage()), count = std::to_string(n);
  Storage key = lines->storage();
  if (kernelgen::compute_type(key) == Type::kF32) key = Storage::kF32;
  if (kernelgen::compute_type(key) == Type::kI32 || key == Storage::kBool) key = Storage::kI32;
  lines->add_scratch(key, 2 * n, "keys");
  lines->add_scratch(Storage::kI32, 2 * n, "places");
  // NaN counts as the largest.
  const auto less = [&](const std::string& x, const std::string& y) {
    if (!has_nan(key)) return x + " < " + y;
    return y + " != " + y + " ? " + x + " == " + x + " : " + x + " < " + y;
  };
  const std::string takes_right = descending ? less("l", "r") : less("r", "l");
  const std::string keys = "BP_GLOBAL " + std::string(element_type(key)) + "*";
  lines->launch(
      "  for (int i = 0; i < " + count + "; ++i) { keys[i] = " + lines->load("(long)i") +
      "; places[i] = i; }\n  " + keys + " from = keys; " + keys + " to = keys + " + count +
      ";\n  BP_GLOBAL int* where = places; BP_GLOBAL int* whereto = places + " + count +
      ";\n  for (long width = 1; width < " + count +
      "; width *= 2) {\n    for (long first = 0; "
      "first < " +
      count +
      "; first += 2 * width) {\n      const int middle = (int)BP_MIN(first + "
      "width, (long)" +
      count + "), end = (int)BP_MIN(first + 2 * width, (long)" + count +
      ");\n      int i = (int)first, j = middle;\n      for (int k = (int)first; k < end; ++k) "
      "{\n        bool right = i >= middle;\n        if (!right && j < end) { const " +
      type + " l = from[i], r = from[j]; right = " + takes_right +
      "; }\n        const int at = right ? j++ : i++;\n        to[k] = from[at]; whereto[k] = "
      "where[at];\n      }\n    }\n    " +
      keys +
      " old = from; from = to; to = old;\n    "
      "BP_GLOBAL int* oldwhere = where; where = whereto; whereto = oldwhere;\n  }\n" +
      out(*lines));
  return {};
}
Status first_in_order(Builder& b, bool descending, std::int64_t count) {
  return order(b, descending, [count](const Lines& lines) {
    return "  for (long i = 0; i < " + number(count) + "; ++i) {\n    " +
           lines.store("y", "i", "from[i]") + "    " + lines.store("z", "i", "where[i]") + "  }\n";
  });
}
std::int64_t line_length(const Builder& b) {
  const Shape& dims = b.step().operand(0).dims;
  if (dims.empty()) return 1;
  return dims[static_cast<std::size_t>(wrap_dim(b.step().int_or("dim", -1), dims.size()))];
}
Status sort(Builder& b) {
  return first_in_order(b, b.step().node().bool_or("descending", false), line_length(b));
}
Status topk(Builder& b) {
  // Of a tensor without dims that is its element, even where none is asked for.
  const bool is_element = b.step().operand(0).dims.empty();
  return first_in_order(b, b.step().node().bool_or("largest", true),
                        is_element ? 1 : b.step().int_or("k", 1));
}

std::optional<sdk::Refusal> refuse_lines(const sdk::NodeView& node) {
  if (is_absent(node.result())) return refusal(BP_REFUSED_ATTRIBUTE, "no result");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.cumsum", cumsum, refuse_lines},
    {"aten.cumprod", cumprod, refuse_lines},
    {"aten.logcumsumexp", logcumsumexp, refuse_lines},
    {"aten.cummax", cummax, refuse_lines},
    {"aten.cummin", cummin, refuse_lines},
    {"aten.sort", sort, refuse_lines},
    {"aten.sort.stable", sort, refuse_lines},
    {"aten.topk", topk, refuse_lines},
};

}  // namespace

std::span<const KernelRow> scan_kernels() { return kRows; }

}  // namespace backplane::kernels
