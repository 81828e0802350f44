#include "core/ir/shape_rules.h"

#include <algorithm>
#include <optional>

#include "core/ir/text.h"

namespace backplane::ir {
namespace {

using Dims = std::vector<Dim>;

class ShapeCheck {
 public:
  ShapeCheck(const Graph& graph, const DimAlgebra& algebra, const Node& node)
      : graph_(graph), algebra_(algebra), node_(node) {}

  Status run() const {
    if (node_.results.empty() || node_.operands.empty()) return {};
    switch (node_.op->shape_rule) {
      case ShapeRule::kTrusted:
        return {};
      case ShapeRule::kBroadcast:
        return broadcast();
      case ShapeRule::kSameAsFirst:
        return same_as_first();
      case ShapeRule::kMatmul:
        return matmul();
      case ShapeRule::kView:
        return view();
    }
    return {};
  }

 private:
  const Dims& result() const { return graph_.values[node_.results[0]].type.dims; }
  const Dims& operand(std::size_t i) const { return graph_.values[node_.operands[i]].type.dims; }

  std::string text(const Dims& dims) const {
    TensorType type;
    type.dims = dims;
    type.strides.assign(dims.size(), Dim(0));
    const std::string full = print_type(graph_, type);
    const std::size_t open = full.find('[');
    return full.substr(open, full.find(']') + 1 - open);
  }

  Status expected(const Dims& dims, const Dims& found) const {
    return Status(Code::kVerifyError,
                  "Expected result shape " + text(dims) + ", found " + text(found) + ".");
  }
  static Status refuse(std::string message) {
    return Status(Code::kVerifyError, std::move(message));
  }

  // A class that may be 1 broadcasts at some sizes, so nothing can be said about it.
  bool may_be_one(Dim dim) const {
    return dim.is_class() && graph_.dim_classes[dim.class_index()].min <= 1;
  }
  bool agree(Dim a, Dim b) const { return may_be_one(a) || may_be_one(b) || algebra_.equal(a, b); }
  bool agree(const Dims& a, const Dims& b) const {
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(), [&](Dim x, Dim y) { return agree(x, y); });
  }
  Status expect(const Dims& dims) const {
    return agree(dims, result()) ? Status() : expected(dims, result());
  }

  Status broadcast() const {
    Dims dims;
    for (ValueId id : node_.operands) {
      if (id == kNone) continue;
      const Dims& other = graph_.values[id].type.dims;
      if (other.size() > dims.size()) dims.insert(dims.begin(), other.size() - dims.size(), Dim(1));
      for (std::size_t i = 0; i < other.size(); ++i) {
        Dim& dim = dims[dims.size() - other.size() + i];
        if (dim == Dim(1)) {
          dim = other[i];
        } else if (!(other[i] == Dim(1)) && !agree(dim, other[i])) {
          return refuse("The operand shape " + text(other) + " does not broadcast with " +
                        text(dims) + ".");
        }
      }
    }
    for (ValueId id : node_.results) {
      const Dims& found = graph_.values[id].type.dims;
      if (!agree(dims, found)) return expected(dims, found);
    }
    return {};
  }

  Status same_as_first() const {
    if (node_.operands[0] == kNone) return {};
    for (ValueId id : node_.results) {
      const Dims& found = graph_.values[id].type.dims;
      if (!agree(operand(0), found)) return expected(operand(0), found);
    }
    return {};
  }

  Status product(const Dims& left, const Dims& right, std::size_t rank) const {
    if (left.size() != rank || right.size() != rank) {
      return refuse("Expected factors of rank " + std::to_string(rank) + ".");
    }
    if (!agree(left[rank - 1], right[rank - 2]) || (rank == 3 && !agree(left[0], right[0]))) {
      return refuse("The factors " + text(left) + " and " + text(right) + " do not fit.");
    }
    Dims dims(left.begin(), left.end() - 1);
    dims.push_back(right[rank - 1]);
    return expect(dims);
  }

  Status matmul() const {
    const std::string_view name = node_.op->name;
    if (std::find(node_.operands.begin(), node_.operands.end(), kNone) != node_.operands.end() &&
        name != "aten.linear") {
      return {};
    }
    if (name == "aten.mm") return product(operand(0), operand(1), 2);
    if (name == "aten.bmm") return product(operand(0), operand(1), 3);
    if (name == "aten.addmm") return product(operand(1), operand(2), 2);
    if (name == "aten.baddbmm") return product(operand(1), operand(2), 3);
    if (name == "aten.mv") {
      if (operand(0).size() != 2 || operand(1).size() != 1 ||
          !agree(operand(0)[1], operand(1)[0])) {
        return refuse("Expected a matrix and a vector of its row length.");
      }
      return expect({operand(0)[0]});
    }
    if (name == "aten.dot" || name == "aten.vdot") return expect({});
    if (name == "aten.linear") {
      const Dims& input = operand(0);
      const Dims& weight = operand(1);
      if (weight.size() != 2) return {};
      if (input.empty() || !agree(input.back(), weight[1])) {
        return refuse("The input " + text(input) + " does not fit the weight " + text(weight) +
                      ".");
      }
      Dims dims = input;
      dims.back() = weight[0];
      return expect(dims);
    }
    return {};
  }

  std::optional<std::int64_t> integer(std::string_view name) const {
    const Attribute* attribute = node_.find_attribute(name);
    const Dim* dim = attribute != nullptr ? std::get_if<Dim>(&attribute->value) : nullptr;
    if (dim == nullptr || dim->is_class()) return std::nullopt;
    return dim->number();
  }

  // Expressions that are no products defeat the algebra, so counts are compared at the hints.
  Status same_count() const {
    const auto count = [&](const Dims& dims) {
      std::int64_t product = 1;
      for (Dim dim : dims) {
        if (__builtin_mul_overflow(product, graph_.hint_of(dim), &product)) return INT64_MAX;
      }
      return product;
    };
    const auto from = algebra_.product(operand(0));
    if (from && from == algebra_.product(result())) return {};
    if (count(operand(0)) == count(result())) return {};
    return refuse("A view of " + text(operand(0)) + " cannot have the shape " + text(result()) +
                  ".");
  }

  Status permuted(const Dims& dims, std::vector<std::int64_t> order) const {
    const auto rank = static_cast<std::int64_t>(dims.size());
    Dims permuted;
    std::vector<bool> is_taken(dims.size(), false);
    for (std::int64_t& from : order) {
      if (from < 0) from += rank;
      if (from < 0 || from >= rank || is_taken[static_cast<std::size_t>(from)]) {
        return refuse("Its dims are no permutation of " + text(dims) + ".");
      }
      is_taken[static_cast<std::size_t>(from)] = true;
      permuted.push_back(dims[static_cast<std::size_t>(from)]);
    }
    if (permuted.size() != dims.size()) {
      return refuse("Its dims are no permutation of " + text(dims) + ".");
    }
    return expect(permuted);
  }

  Status transposed(const Dims& dims, std::int64_t a, std::int64_t b) const {
    const auto rank = static_cast<std::int64_t>(dims.size());
    if (a < 0) a += rank;
    if (b < 0) b += rank;
    if (rank == 0) return expect({});
    if (a < 0 || b < 0 || a >= rank || b >= rank) return refuse("Its dims are out of range.");
    Dims swapped = dims;
    std::swap(swapped[static_cast<std::size_t>(a)], swapped[static_cast<std::size_t>(b)]);
    return expect(swapped);
  }

  Status view() const {
    if (node_.operands[0] == kNone) return {};
    const Dims& from = operand(0);
    const Dims& to = result();
    std::string_view name = node_.op->name.substr(5);
    if (const std::size_t copy = name.find("_copy"); copy != std::string_view::npos) {
      name = name.substr(0, copy);
    }
    if (name.starts_with("permute")) {
      const Attribute* attribute = node_.find_attribute("dims");
      const auto* list =
          attribute != nullptr ? std::get_if<std::vector<Dim>>(&attribute->value) : nullptr;
      if (list == nullptr) return refuse("It has no integer list called dims.");
      std::vector<std::int64_t> order;
      for (Dim dim : *list) order.push_back(dim.is_class() ? INT64_MIN / 2 : dim.number());
      return permuted(from, std::move(order));
    }
    if (name == "t") {
      return from.size() > 2    ? refuse("Expected a rank of at most 2.")
             : from.size() == 2 ? transposed(from, 0, 1)
                                : expect(from);
    }
    if (name.starts_with("transpose")) {
      const auto a = integer("dim0");
      const auto b = integer("dim1");
      if (!a || !b) return refuse("It has no integers called dim0 and dim1.");
      return transposed(from, *a, *b);
    }
    if (name.starts_with("expand")) {
      if (to.size() < from.size()) return expected(from, to);
      const std::size_t added = to.size() - from.size();
      for (std::size_t i = 0; i < from.size(); ++i) {
        if (!(from[i] == Dim(1)) && !agree(from[i], to[added + i])) return expected(from, to);
      }
      return {};
    }
    if (name.starts_with("slice")) {
      const auto dim = integer("dim").value_or(0);
      if (to.size() != from.size()) return expected(from, to);
      const auto rank = static_cast<std::int64_t>(from.size());
      for (std::int64_t i = 0; i < rank; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (i != (dim < 0 ? dim + rank : dim) && !agree(from[at], to[at]))
          return expected(from, to);
      }
      return {};
    }
    if (name.starts_with("select")) {
      return to.size() + 1 == from.size() ? Status()
                                          : refuse("Expected a result of one rank less.");
    }
    return same_count();
  }

  const Graph& graph_;
  const DimAlgebra& algebra_;
  const Node& node_;
};

}  // namespace

Status check_shape_rule(const Graph& graph, const DimAlgebra& algebra, const Node& node) {
  return ShapeCheck(graph, algebra, node).run();
}

}  // namespace backplane::ir
