#include "core/ir/generalize.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace backplane::ir {
namespace {

using Numbers = std::vector<std::int64_t>;  // one for each sample

// a * b, where it fits.
std::optional<std::int64_t> multiply(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

// Sizes, then strides.
template <class Type, class OnDim>
void for_each_dim(Type& type, OnDim&& dim) {
  for (auto& d : type.dims) dim(d);
  for (auto& d : type.strides) dim(d);
}

bool is_constant(const Numbers& values) {
  return std::all_of(values.begin(), values.end(), [&](std::int64_t v) { return v == values[0]; });
}

// The classes found so far, and expressions over them for new numbers.
class Classes {
 public:
  explicit Classes(std::vector<DimClass>& out) : out_(out) {}

  // Whether the classes have these values, or an expression over them does.
  bool can_say(const Numbers& values) const {
    return known_.contains(values) || find_expression(values).has_value();
  }

  // The dim that has these values; a new class where no expression fits.
  Dim dim_of(const Numbers& values, bool must_be_free, std::size_t number,
             std::vector<std::size_t>& sources) {
    if (const auto found = known_.find(values); found != known_.end())
      return Dim::dim_class(found->second);
    std::optional<std::string> expression;
    if (!must_be_free) expression = find_expression(values);
    DimClass made;
    made.name = (expression ? "d" : "s") + std::to_string(out_.size());
    made.min = 0;
    made.hint = values[0];
    if (expression)
      made.expression = *expression;
    else
      sources.push_back(number);
    const auto index = static_cast<std::uint32_t>(out_.size());
    // Products of products would only be the same again.
    if (!expression || expression->find('+') != std::string::npos ||
        expression->find('-') != std::string::npos)
      factors_.push_back(index);
    out_.push_back(std::move(made));
    values_.push_back(values);
    known_.emplace(values, index);
    return Dim::dim_class(index);
  }

 private:
  // The number that `values` are, each, of `unit`; null where they are not.
  static std::optional<std::int64_t> ratio(const Numbers& values, const Numbers& unit) {
    std::optional<std::int64_t> found;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (unit[i] == 0) {
        if (values[i] != 0) return std::nullopt;
        continue;
      }
      if (values[i] % unit[i] != 0) return std::nullopt;
      const std::int64_t now = values[i] / unit[i];
      if (now <= 0 || (found && *found != now)) return std::nullopt;
      found = now;
    }
    return found;
  }

  std::optional<std::string> find_expression(const Numbers& values) const {
    if (auto product = find_product(values, 1)) return product;
    if (auto sum = find_sum(values)) return sum;
    for (std::size_t degree = 2; degree <= 3; ++degree)
      if (auto product = find_product(values, degree)) return product;
    return std::nullopt;
  }

  // coefficient * product of `degree` factors, which may repeat.
  std::optional<std::string> find_product(const Numbers& values, std::size_t degree) const {
    std::vector<std::uint32_t> chosen;
    const std::function<std::optional<std::string>(std::size_t, const Numbers&)> choose =
        [&](std::size_t first, const Numbers& product) -> std::optional<std::string> {
      if (chosen.size() == degree) {
        const auto coefficient = ratio(values, product);
        if (!coefficient) return std::nullopt;
        std::string text = *coefficient == 1 ? "" : std::to_string(*coefficient) + "*";
        for (std::size_t i = 0; i < chosen.size(); ++i)
          text += (i ? "*" : "") + out_[chosen[i]].name;
        return text;
      }
      for (std::size_t f = first; f < factors_.size(); ++f) {
        Numbers next = product;
        bool fits = true;
        for (std::size_t i = 0; i < next.size() && fits; ++i) {
          const auto made = multiply(next[i], values_[factors_[f]][i]);
          fits = made.has_value();
          if (fits) next[i] = *made;
        }
        if (!fits) continue;
        chosen.push_back(factors_[f]);
        auto found = choose(f, next);
        chosen.pop_back();
        if (found) return found;
      }
      return std::nullopt;
    };
    return choose(0, Numbers(values.size(), 1));
  }

  // slope * class + offset.
  std::optional<std::string> find_sum(const Numbers& values) const {
    for (const std::uint32_t f : factors_) {
      const Numbers& unit = values_[f];
      std::size_t other = 1;
      while (other < unit.size() && unit[other] == unit[0]) ++other;
      if (other == unit.size()) continue;
      const std::int64_t rise = values[other] - values[0], run = unit[other] - unit[0];
      if (rise % run != 0) continue;
      const std::int64_t slope = rise / run;
      const auto scaled = multiply(slope, unit[0]);
      if (!scaled || slope == 0) continue;
      const std::int64_t offset = values[0] - *scaled;
      bool fits = true;
      for (std::size_t i = 0; i < values.size() && fits; ++i) {
        const auto term = multiply(slope, unit[i]);
        fits = term && *term + offset == values[i];
      }
      if (!fits) continue;
      // Two samples are always on a line; only the plain ones are worth a guess.
      if (values.size() < 3 && slope != 1 && slope != -1) continue;
      std::string text = slope == 1    ? out_[f].name
                         : slope == -1 ? "0-" + out_[f].name
                                       : std::to_string(slope) + "*" + out_[f].name;
      if (slope < 0 && slope != -1) text = "0-" + std::to_string(-slope) + "*" + out_[f].name;
      return text + (offset < 0 ? "-" + std::to_string(-offset) : "+" + std::to_string(offset));
    }
    return std::nullopt;
  }

  std::vector<DimClass>& out_;
  std::vector<Numbers> values_;         // by class
  std::vector<std::uint32_t> factors_;  // classes that expressions are made of
  std::map<Numbers, std::uint32_t> known_;
};

// Operators whose second operand may be a number, and what that argument is called.
struct NumberForm {
  std::string_view tensor, number, argument;
};
constexpr NumberForm kNumberForms[]{
    {"aten.add.Tensor", "aten.add.Scalar", "other"},
    {"aten.sub.Tensor", "aten.sub.Scalar", "other"},
    {"aten.mul.Tensor", "aten.mul.Scalar", "other"},
    {"aten.div.Tensor", "aten.div.Scalar", "other"},
    {"aten.eq.Tensor", "aten.eq.Scalar", "other"},
    {"aten.ne.Tensor", "aten.ne.Scalar", "other"},
    {"aten.lt.Tensor", "aten.lt.Scalar", "other"},
    {"aten.le.Tensor", "aten.le.Scalar", "other"},
    {"aten.gt.Tensor", "aten.gt.Scalar", "other"},
    {"aten.ge.Tensor", "aten.ge.Scalar", "other"},
    {"aten.remainder.Tensor", "aten.remainder.Scalar", "other"},
    {"aten.fmod.Tensor", "aten.fmod.Scalar", "other"},
    {"aten.fill.Tensor", "aten.fill.Scalar", "value"},
};

// A number that is a tensor becomes an attribute: the overload that takes a number.
Status make_scalar(Graph& graph, ValueId constant, Dim dim) {
  if (std::ranges::find(graph.outputs, constant) != graph.outputs.end())
    return Status(Code::kUnsupported, "a number that varies with the sizes is a result");
  for (Node& node : graph.nodes)
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      if (node.operands[i] != constant) continue;
      const auto* const form = std::ranges::find(kNumberForms, node.op->name, &NumberForm::tensor);
      const Value& beside = graph.values[node.operands[0]];
      const bool is_narrow = dtype_bytes(beside.type.dtype) < 4;  // a larger size may not fit
      const bool promotes =
          is_float(graph.values[constant].type.dtype) && !is_float(beside.type.dtype);
      if (i != 1 || node.operands.size() != 2 || form == std::end(kNumberForms) || promotes ||
          is_narrow)
        return Status(Code::kUnsupported, "a number that varies with the sizes is an operand of " +
                                              std::string(node.op->name) +
                                              ", which takes tensors or larger numbers only");
      node.op = find_or_intern_op(std::string(form->number));
      node.operands.pop_back();
      node.attributes.insert(node.attributes.begin(), {std::string(form->argument), dim});
    }
  return {};
}

}  // namespace

Result<GeneralGraph> GeneralGraph::build(const Graph& graph,
                                         std::span<const FlatGraph* const> samples) {
  GeneralGraph made;
  made.graph_ = graph;
  made.dims_.resize(samples[0]->numbers.size());
  // Strides that say nothing in one sample take the value that the others give. Where they say
  // nothing in all they follow the next dim, as a dense tensor's, or are the number of the graph.
  std::vector<Numbers> numbers(made.dims_.size(), Numbers(samples.size()));
  std::size_t next = 0;
  std::vector<std::pair<std::size_t, ValueId>> constants;
  std::vector<bool> is_input_size(made.dims_.size(), false);
  std::vector<std::int64_t> own(made.dims_.size());
  const auto read = [&](const Dim& dim) { own[next++] = dim.number(); };
  struct Place {
    std::size_t first, rank;
  };
  std::vector<Place> places;  // of the types' numbers
  visit_numbers(
      graph,
      [&](const TensorType& type) {
        places.push_back({next, type.rank()});
        for_each_dim(type, read);
      },
      read,
      [&](ValueId v) {
        constants.emplace_back(next, v);
        is_whole_number(graph.values[v], own[next++]);
      });
  next = 0;
  for (const ValueId v : graph.inputs) {
    const TensorType& type = graph.values[v].type;
    for (std::size_t d = 0; d < type.rank(); ++d) is_input_size[next + d] = true;
    next += type.dims.size() + type.strides.size();
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    std::int64_t known = own[i];
    for (const FlatGraph* sample : samples)
      if (sample->numbers[i] != kAnyNumber) known = sample->numbers[i];
    for (std::size_t s = 0; s < samples.size(); ++s)
      numbers[i][s] = samples[s]->numbers[i] == kAnyNumber ? known : samples[s]->numbers[i];
  }
  std::vector<bool> is_guess(made.dims_.size(), false);
  for (const auto& [first, rank] : places)
    for (std::size_t d = rank; d-- > 1;) {
      const std::size_t size = first + d, stride = first + rank + d, i = stride - 1;
      const auto says_nothing = [&](const FlatGraph* s) { return s->numbers[i] == kAnyNumber; };
      if (own[i] != own[size] * own[stride] || !std::ranges::all_of(samples, says_nothing))
        continue;
      is_guess[i] = true;
      for (std::size_t s = 0; s < samples.size(); ++s)
        numbers[i][s] = multiply(numbers[size][s], numbers[stride][s]).value_or(own[i]);
    }

  Classes classes(made.graph_.dim_classes);
  // Inputs come first, so that all else is expressed by their sizes.
  for (const bool inputs : {true, false})
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (is_input_size[i] != inputs) continue;
      if (is_guess[i] && !classes.can_say(numbers[i])) numbers[i].assign(samples.size(), own[i]);
      made.dims_[i] = is_constant(numbers[i])
                          ? Dim(numbers[i][0])
                          : classes.dim_of(numbers[i], inputs, i, made.sources_);
    }

  next = 0;
  const auto write = [&](Dim& dim) { dim = made.dims_[next++]; };
  visit_numbers(
      made.graph_, [&](TensorType& type) { for_each_dim(type, write); }, write,
      [&](ValueId) { ++next; });
  for (const auto& [i, v] : constants)
    if (made.dims_[i].is_class()) BP_RETURN_IF_ERROR(make_scalar(made.graph_, v, made.dims_[i]));

  Graph alone;
  alone.dim_classes = made.graph_.dim_classes;
  std::vector<std::string> free;
  for (const DimClass& c : alone.dim_classes)
    if (c.expression.empty()) free.push_back(c.name);
  BP_ASSIGN_OR_RETURN(made.program_, DimProgram::build(alone, free));
  return made;
}

Result<std::vector<std::int64_t>> GeneralGraph::match(const FlatGraph& flat) const {
  std::vector<std::int64_t> free;
  for (const std::size_t source : sources_) {
    if (flat.numbers[source] == kAnyNumber)
      return Status(Code::kInvalidArgument, "a stride that a class stands for says nothing here");
    free.push_back(flat.numbers[source]);
  }
  std::vector<std::int64_t> values(graph_.dim_classes.size());
  BP_RETURN_IF_ERROR(program_.evaluate({}, free, values));
  for (std::size_t i = 0; i < dims_.size(); ++i) {
    const std::int64_t number = flat.numbers[i];
    if (number == kAnyNumber) continue;
    const std::int64_t expected =
        dims_[i].is_class() ? values[dims_[i].class_index()] : dims_[i].number();
    if (number == expected) continue;
    std::string what = "number " + std::to_string(i) + " is " + std::to_string(number);
    if (dims_[i].is_class()) {
      const DimClass& c = graph_.dim_classes[dims_[i].class_index()];
      what += ", but class " + c.name + (c.expression.empty() ? "" : " = " + c.expression) +
              " gives " + std::to_string(expected);
    } else {
      what += ", but was " + std::to_string(expected) + " before";
    }
    return Status(Code::kInvalidArgument, what);
  }
  return free;
}

}  // namespace backplane::ir
