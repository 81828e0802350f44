// What a kernel sees of one call: operands, results and attributes.
#pragma once

#include <backplane/sdk/program.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace backplane::reference {

struct KernelRow;

struct Attribute {
  std::string name;
  bp_attribute_kind kind = BP_ATTRIBUTE_NONE;
  std::int64_t integer = 0;
  double real = 0, imaginary = 0;
  bool is_complex = false;  // kind is FLOAT then
  std::string text;
  Type type = Type::kNone;
  Shape integers;
  std::vector<double> reals;
};

// Kept by a prepared kernel; sizes are known, addresses are not.
struct NodePlan {
  NodePlan(const sdk::StepContext& step, const KernelRow* row);
  const KernelRow* row;
  std::vector<Tensor> operands, results;  // data null
  std::vector<bool> operand_present, operand_constant, result_present;
  std::int64_t list_first = 0, list_count = 0;
  std::vector<Attribute> attributes;
};

class Frame {
 public:
  Frame(const NodePlan& plan, const sdk::KernelCall& call) : plan_(plan), call_(call) {}

  const KernelRow& row() const { return *plan_.row; }
  std::int64_t operand_count() const { return static_cast<std::int64_t>(plan_.operands.size()); }
  std::int64_t result_count() const { return static_cast<std::int64_t>(plan_.results.size()); }
  bool has(std::int64_t i) const { return i < operand_count() && plan_.operand_present[i]; }
  bool wants(std::int64_t i) const { return i < result_count() && plan_.result_present[i]; }
  bool constant(std::int64_t i) const { return plan_.operand_constant[i]; }
  Tensor in(std::int64_t i) const;
  Tensor out(std::int64_t i = 0) const;
  std::int64_t list_first() const { return plan_.list_first; }
  std::int64_t list_count() const { return plan_.list_count; }

  const Attribute* attribute(std::string_view name) const;  // null when absent or None
  bool present(std::string_view name) const { return attribute(name) != nullptr; }
  std::int64_t integer(std::string_view name, std::int64_t fallback) const;
  double real(std::string_view name, double fallback) const;
  bool flag(std::string_view name, bool fallback) const;
  std::string_view text(std::string_view name, std::string_view fallback) const;
  Shape ints(std::string_view name) const;  // empty when absent
  // A list of n, from one value or none as well.
  Shape ints(std::string_view name, std::int64_t n, std::int64_t fallback) const;
  std::vector<double> reals(std::string_view name) const;
  // The dimensions an attribute lists, wrapped and sorted; every one when absent or empty.
  Shape dims(std::string_view name, std::int64_t rank) const;
  template <class T>
  T scalar(std::string_view name, T fallback) const {
    const Attribute* a = attribute(name);
    if (a == nullptr) return fallback;
    if (a->kind == BP_ATTRIBUTE_FLOAT) {
      if constexpr (std::is_same_v<T, std::int64_t>)
        return to_integer(a->real);
      else if constexpr (std::is_same_v<T, Complex>)
        return {a->real, a->imaginary};
      else
        return a->real;
    }
    if constexpr (std::is_same_v<T, std::int64_t>)
      return a->integer;
    else
      return T(static_cast<double>(a->integer));
  }

 private:
  const NodePlan& plan_;
  const sdk::KernelCall& call_;
};

}  // namespace backplane::reference
