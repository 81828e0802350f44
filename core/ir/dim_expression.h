// Evaluates dim classes: the values of all classes from the sizes of the inputs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/ir/expression.h"
#include "core/ir/graph.h"

namespace backplane::ir {

// A class is bound from an input's size where one has it bare, else computed from its expression
// (core/ir/expression.h) over other classes. Built once
// per graph, evaluated per call without allocation.
class DimProgram {
 public:
  // Fails when a class can neither be bound nor computed. `extra_names` are classes whose value the
  // caller passes as an integer argument instead (dynamic ints of the frontend): they come first.
  static Result<DimProgram> build(const Graph& graph,
                                  std::span<const std::string> integer_arguments);

  // sizes(i) gives the shape of input i as a span. Writes one value per class. An input whose
  // constant size, or second use of a class, disagrees is kInvalidArgument naming both.
  Status evaluate(std::span<const std::span<const std::int64_t>> input_sizes,
                  std::span<const std::int64_t> integer_arguments,
                  std::span<std::int64_t> out_values) const;

 private:
  // A bare use of a class in an input's shape: the first one binds, later ones are checked.
  struct Binding {
    std::uint32_t class_index, input, dim;
  };
  struct ConstantSize {
    std::uint32_t input, dim;
    std::int64_t size;
  };
  // A slice of code_ for one class; a class that is bound as well is checked against it.
  struct Computed {
    std::uint32_t class_index, first, count;
    bool is_check;
  };

  Status compute(const Computed& computed, std::span<const std::int64_t> values,
                 std::int64_t& out_value) const;

  std::vector<Binding> bindings_;  // those that bind first
  std::size_t binding_count_ = 0;  // how many of them bind
  std::vector<ConstantSize> constants_;
  std::vector<std::uint32_t> integer_classes_;
  std::vector<Computed> computed_;  // in dependency order, checks last
  std::vector<ExpressionStep> code_;
  std::vector<std::uint32_t> input_ranks_;
  std::vector<std::string> class_names_, input_names_, expressions_;  // for messages
};

}  // namespace backplane::ir
