#include "core/ir/dim_expression.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>

namespace backplane::ir {
namespace {

constexpr std::uint32_t kMaxStack = 64;

std::string place(const std::string& input, std::uint32_t dim) {
  return "dim " + std::to_string(dim) + " of input %" + input;
}

}  // namespace

Result<DimProgram> DimProgram::build(const Graph& graph,
                                     std::span<const std::string> integer_arguments) {
  DimProgram program;
  const auto class_count = static_cast<std::uint32_t>(graph.dim_classes.size());
  std::unordered_map<std::string_view, std::uint32_t> index_of;
  for (std::uint32_t i = 0; i < class_count; ++i) {
    index_of.emplace(graph.dim_classes[i].name, i);
    program.class_names_.push_back(graph.dim_classes[i].name);
    program.expressions_.push_back(graph.dim_classes[i].expression);
  }

  std::vector<bool> is_known(class_count, false);
  for (const std::string& name : integer_arguments) {
    const auto it = index_of.find(name);
    if (it == index_of.end()) {
      return Status(Code::kInvalidArgument,
                    "The integer argument \"" + name + "\" names no dim class of the graph.");
    }
    program.integer_classes_.push_back(it->second);
    is_known[it->second] = true;
  }

  std::vector<Binding> repeated;
  for (std::uint32_t i = 0; i < graph.inputs.size(); ++i) {
    const Value& input = graph.values[graph.inputs[i]];
    program.input_names_.push_back(input.name);
    program.input_ranks_.push_back(static_cast<std::uint32_t>(input.type.rank()));
    for (std::uint32_t d = 0; d < input.type.rank(); ++d) {
      const Dim dim = input.type.dims[d];
      if (!dim.is_class()) {
        program.constants_.push_back({i, d, dim.number()});
      } else if (is_known[dim.class_index()]) {
        repeated.push_back({dim.class_index(), i, d});
      } else {
        is_known[dim.class_index()] = true;
        program.bindings_.push_back({dim.class_index(), i, d});
      }
    }
  }
  program.binding_count_ = program.bindings_.size();
  program.bindings_.insert(program.bindings_.end(), repeated.begin(), repeated.end());

  // Rounds over the classes until nothing new can be computed; each round settles at least one.
  std::vector<std::vector<ExpressionStep>> steps(class_count);
  for (std::uint32_t c = 0; c < class_count; ++c) {
    if (graph.dim_classes[c].expression.empty()) continue;
    auto parsed = parse_expression(graph.dim_classes[c].expression,
                                   [&](std::string_view name) -> std::optional<std::uint32_t> {
                                     const auto it = index_of.find(name);
                                     if (it == index_of.end()) return std::nullopt;
                                     return it->second;
                                   });
    if (!parsed.ok()) {
      return parsed.take_status().with_context("reading dim class " + graph.dim_classes[c].name);
    }
    steps[c] = std::move(*parsed);
    if (expression_stack_depth(steps[c]) > kMaxStack) {
      return Status(Code::kUnsupported, "The expression of dim class " + graph.dim_classes[c].name +
                                            " is nested too deeply.");
    }
  }
  const auto append = [&](std::uint32_t c, bool is_check) {
    program.computed_.push_back({c, static_cast<std::uint32_t>(program.code_.size()),
                                 static_cast<std::uint32_t>(steps[c].size()), is_check});
    program.code_.insert(program.code_.end(), steps[c].begin(), steps[c].end());
  };
  const std::vector<bool> is_bound = is_known;
  for (bool progress = true; progress;) {
    progress = false;
    for (std::uint32_t c = 0; c < class_count; ++c) {
      if (is_known[c] || steps[c].empty()) continue;
      const bool ready = std::all_of(steps[c].begin(), steps[c].end(), [&](ExpressionStep step) {
        return step.op != ExpressionOp::kClass || is_known[static_cast<std::size_t>(step.argument)];
      });
      if (!ready) continue;
      append(c, false);
      is_known[c] = progress = true;
    }
  }
  for (std::uint32_t c = 0; c < class_count; ++c) {
    if (!is_known[c]) {
      return Status(Code::kInvalidArgument,
                    "Dim class " + graph.dim_classes[c].name +
                        " is no input's size and cannot be computed from classes that are.");
    }
    if (is_bound[c] && !steps[c].empty()) append(c, true);
  }
  return program;
}

Status DimProgram::compute(const Computed& computed, std::span<const std::int64_t> values,
                           std::int64_t& out_value) const {
  std::array<std::int64_t, kMaxStack> stack;
  std::size_t top = 0;
  for (std::uint32_t i = computed.first; i < computed.first + computed.count; ++i) {
    const ExpressionStep step = code_[i];
    if (step.op == ExpressionOp::kConstant) {
      stack[top++] = step.argument;
    } else if (step.op == ExpressionOp::kClass) {
      stack[top++] = values[static_cast<std::size_t>(step.argument)];
    } else {
      --top;
      if (!apply_expression_op(step.op, stack[top - 1], stack[top], stack[top - 1])) {
        return Status(Code::kInvalidArgument, "Dim class " + class_names_[computed.class_index] +
                                                  " = " + expressions_[computed.class_index] +
                                                  " overflows or divides by zero at these sizes.");
      }
    }
  }
  out_value = stack[0];
  return {};
}

Status DimProgram::evaluate(std::span<const std::span<const std::int64_t>> input_sizes,
                            std::span<const std::int64_t> integer_arguments,
                            std::span<std::int64_t> out_values) const {
  if (input_sizes.size() != input_ranks_.size() ||
      integer_arguments.size() != integer_classes_.size() ||
      out_values.size() != class_names_.size()) {
    return Status(Code::kInvalidArgument,
                  "The graph takes " + std::to_string(input_ranks_.size()) + " inputs, " +
                      std::to_string(integer_classes_.size()) + " integers and has " +
                      std::to_string(class_names_.size()) + " dim classes; given were " +
                      std::to_string(input_sizes.size()) + ", " +
                      std::to_string(integer_arguments.size()) + " and " +
                      std::to_string(out_values.size()) + ".");
  }
  for (std::size_t i = 0; i < input_sizes.size(); ++i) {
    if (input_sizes[i].size() != input_ranks_[i]) {
      return Status(Code::kInvalidArgument, "Input %" + input_names_[i] + " has rank " +
                                                std::to_string(input_sizes[i].size()) +
                                                ", expected " + std::to_string(input_ranks_[i]) +
                                                ".");
    }
  }
  for (const ConstantSize& constant : constants_) {
    const std::int64_t size = input_sizes[constant.input][constant.dim];
    if (size != constant.size) {
      return Status(Code::kInvalidArgument, "Size " + std::to_string(size) + " at " +
                                                place(input_names_[constant.input], constant.dim) +
                                                " differs from the constant " +
                                                std::to_string(constant.size) + ".");
    }
  }
  for (std::size_t i = 0; i < integer_classes_.size(); ++i) {
    std::int64_t& value = out_values[integer_classes_[i]];
    value = integer_arguments[i];
  }
  for (std::size_t i = 0; i < bindings_.size(); ++i) {
    const Binding& binding = bindings_[i];
    const std::int64_t size = input_sizes[binding.input][binding.dim];
    std::int64_t& value = out_values[binding.class_index];
    if (i < binding_count_) {
      value = size;
    } else if (value != size) {
      const auto first = std::find_if(
          bindings_.begin(), bindings_.begin() + static_cast<std::ptrdiff_t>(binding_count_),
          [&](const Binding& b) { return b.class_index == binding.class_index; });
      const bool is_integer =
          first == bindings_.begin() + static_cast<std::ptrdiff_t>(binding_count_);
      return Status(Code::kInvalidArgument,
                    "Size " + std::to_string(size) + " at " +
                        place(input_names_[binding.input], binding.dim) + " differs from " +
                        class_names_[binding.class_index] + " = " + std::to_string(value) +
                        (is_integer ? ", an integer argument."
                                    : ", " + place(input_names_[first->input], first->dim) + "."));
    }
  }
  for (const Computed& computed : computed_) {
    std::int64_t value = 0;
    BP_RETURN_IF_ERROR(compute(computed, out_values, value));
    std::int64_t& slot = out_values[computed.class_index];
    if (computed.is_check && slot != value) {
      return Status(Code::kInvalidArgument, "Dim class " + class_names_[computed.class_index] +
                                                " is " + std::to_string(slot) + ", but " +
                                                expressions_[computed.class_index] + " is " +
                                                std::to_string(value) + " at these sizes.");
    }
    slot = value;
  }
  return {};
}

}  // namespace backplane::ir
