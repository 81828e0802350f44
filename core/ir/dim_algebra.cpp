#include "core/ir/dim_algebra.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "core/ir/expression.h"

namespace backplane::ir {

DimAlgebra::DimAlgebra(const Graph& graph) : classes_(graph.dim_classes.size()) {
  const std::size_t count = graph.dim_classes.size();
  std::unordered_map<std::string_view, std::uint32_t> index_of;
  for (std::uint32_t i = 0; i < count; ++i) index_of.emplace(graph.dim_classes[i].name, i);

  enum class State : std::uint8_t { kNew, kRunning, kDone };
  std::vector<State> state(count, State::kNew);
  // Expands class `c`, its operands first; a cycle (which the verifier refuses) stays unexpanded.
  const auto expand = [&](const auto& self, std::uint32_t c, int depth) -> void {
    state[c] = State::kRunning;
    classes_[c] = DimProduct{1, {c}};
    const std::string& expression = graph.dim_classes[c].expression;
    if (!expression.empty() && depth < 256) {
      const auto steps =
          parse_expression(expression, [&](std::string_view name) -> std::optional<std::uint32_t> {
            const auto it = index_of.find(name);
            return it == index_of.end() ? std::nullopt : std::optional(it->second);
          });
      DimProduct result;
      bool is_product = steps.ok();
      for (std::size_t i = 0; is_product && i < steps->size(); ++i) {
        const ExpressionStep step = (*steps)[i];
        DimProduct factor;
        if (step.op == ExpressionOp::kConstant) {
          factor.coefficient = step.argument;
        } else if (step.op == ExpressionOp::kClass) {
          const auto operand = static_cast<std::uint32_t>(step.argument);
          if (state[operand] == State::kNew) self(self, operand, depth + 1);
          is_product = state[operand] == State::kDone;
          factor = classes_[operand];
        } else {
          is_product = step.op == ExpressionOp::kMul;
        }
        if (is_product) {
          const auto next = multiply(result, factor);
          is_product = next.has_value();
          if (next) result = *next;
        }
      }
      if (is_product) classes_[c] = std::move(result);
    }
    state[c] = State::kDone;
  };
  for (std::uint32_t c = 0; c < count; ++c) {
    if (state[c] == State::kNew) expand(expand, c, 0);
  }
}

std::optional<DimProduct> DimAlgebra::multiply(const DimProduct& a, const DimProduct& b) const {
  DimProduct result;
  if (__builtin_mul_overflow(a.coefficient, b.coefficient, &result.coefficient)) {
    return std::nullopt;
  }
  if (result.coefficient == 0 || a.classes.size() + b.classes.size() > 64) {
    if (result.coefficient == 0) return result;
    return std::nullopt;
  }
  result.classes.reserve(a.classes.size() + b.classes.size());
  std::merge(a.classes.begin(), a.classes.end(), b.classes.begin(), b.classes.end(),
             std::back_inserter(result.classes));
  return result;
}

std::optional<DimProduct> DimAlgebra::product(std::span<const Dim> dims) const {
  DimProduct result;
  for (Dim dim : dims) {
    if (dim.is_class() && dim.class_index() >= classes_.size()) return std::nullopt;
    auto next = multiply(
        result, dim.is_class() ? classes_[dim.class_index()] : DimProduct{dim.number(), {}});
    if (!next) return std::nullopt;
    result = std::move(*next);
  }
  return result;
}

bool DimAlgebra::equal(Dim a, Dim b) const {
  if (a == b) return true;
  if (!a.is_class() && !b.is_class()) return false;
  return product({&a, 1}) == product({&b, 1});
}

std::optional<Dim> DimAlgebra::find_dim(const DimProduct& product) const {
  if (product.classes.empty()) return Dim(product.coefficient);
  for (std::uint32_t c = 0; c < classes_.size(); ++c) {
    if (classes_[c] == product) return Dim::dim_class(c);
  }
  return std::nullopt;
}

std::optional<std::vector<DimProduct>> DimAlgebra::row_major(std::span<const Dim> dims) const {
  std::vector<DimProduct> strides(dims.size());
  DimProduct running;
  for (std::size_t i = dims.size(); i-- > 0;) {
    strides[i] = running;
    if (!dims[i].is_class() && dims[i].number() <= 1) continue;
    const auto size = product({&dims[i], 1});
    if (!size) return std::nullopt;
    auto next = multiply(running, *size);
    if (!next) return std::nullopt;
    running = std::move(*next);
  }
  return strides;
}

std::optional<std::vector<Dim>> DimAlgebra::row_major_dims(std::span<const Dim> dims) const {
  const auto products = row_major(dims);
  if (!products) return std::nullopt;
  std::vector<Dim> strides;
  strides.reserve(dims.size());
  for (const DimProduct& product : *products) {
    const std::optional<Dim> stride = find_dim(product);
    if (!stride) return std::nullopt;
    strides.push_back(*stride);
  }
  return strides;
}

bool DimAlgebra::is_row_major(const TensorType& type, bool exact) const {
  if (type.strides.size() != type.dims.size()) return false;
  const auto expected = row_major(type.dims);
  if (!expected) return false;
  for (std::size_t i = 0; i < type.dims.size(); ++i) {
    if (!exact && type.dims[i] == Dim(1)) continue;
    const Dim stride = type.strides[i];
    if (!stride.is_class()) {
      if (!(*expected)[i].classes.empty() || (*expected)[i].coefficient != stride.number()) {
        return false;
      }
    } else if (stride.class_index() >= classes_.size() ||
               classes_[stride.class_index()] != (*expected)[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace backplane::ir
