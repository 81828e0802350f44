// A minimum cut: gives every variable a side such that the arcs from keep to change are cheapest.
#pragma once

#include <cstdint>
#include <vector>

namespace backplane::partition {

class CutProblem {
 public:
  using Variable = std::uint32_t;
  static constexpr Variable kKeepSide = 0, kChangeSide = 1;  // the two fixed variables

  Variable add_variable() { return variable_count_++; }
  // Paid when `keep` is on the keep side and `change` on the change side.
  void add_cost(Variable keep, Variable change, double cost);
  // `change` must not be on the change side while `keep` is on the keep side.
  void add_rule(Variable keep, Variable change);

  // Per variable whether it changes. Of several minima the one that changes fewest variables, so
  // the answer depends on nothing but the problem.
  std::vector<bool> solve() const;

 private:
  struct Arc {
    Variable from, to;
    double cost;  // infinite: a rule
  };
  Variable variable_count_ = 2;
  std::vector<Arc> arcs_;
};

}  // namespace backplane::partition
