#include "core/torch/fx/sym_expression.h"

#include <vector>

namespace py = pybind11;

namespace backplane::fx {

namespace {

std::string class_of(const py::handle& e) { return py::str(e.attr("__class__").attr("__name__")); }

Result<std::vector<std::string>> print_arguments(const py::handle& e) {
  std::vector<std::string> out;
  for (const py::handle argument : e.attr("args")) {
    BP_ASSIGN_OR_RETURN(std::string text, print_sympy(argument));
    out.push_back(std::move(text));
  }
  return out;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i) out += separator;
    out += parts[i];
  }
  return out;
}

}  // namespace

Result<std::string> print_sympy(const py::handle& e) {
  const std::string kind = class_of(e);
  if (py::bool_(e.attr("is_Symbol"))) return std::string(py::str(e));
  if (py::bool_(e.attr("is_Integer"))) return std::string(py::str(e));
  if (kind == "Mul") {
    // A rational factor p/q divides the product of the others exactly.
    std::vector<std::string> factors;
    std::string divisor;
    for (const py::handle argument : e.attr("args")) {
      if (py::bool_(argument.attr("is_Rational")) && !py::bool_(argument.attr("is_Integer"))) {
        factors.emplace_back(py::str(argument.attr("p")));
        divisor = py::str(argument.attr("q"));
        continue;
      }
      BP_ASSIGN_OR_RETURN(std::string text, print_sympy(argument));
      factors.push_back(std::move(text));
    }
    const std::string product = "(" + join(factors, " * ") + ")";
    return divisor.empty() ? product : "(" + product + " // " + divisor + ")";
  }
  BP_ASSIGN_OR_RETURN(const std::vector<std::string> parts, print_arguments(e));
  if (kind == "Add") return "(" + join(parts, " + ") + ")";
  if (parts.size() == 2) {
    if (kind == "FloorDiv" || kind == "CleanDiv") return "(" + join(parts, " // ") + ")";
    if (kind == "Mod" || kind == "PythonMod") return "(" + join(parts, " % ") + ")";
    if (kind == "Pow" || kind == "PowByNatural") return "(" + join(parts, " ^ ") + ")";
  }
  if ((kind == "Max" || kind == "Min") && !parts.empty()) {
    const std::string function = kind == "Max" ? "max" : "min";
    std::string out = parts[0];
    for (std::size_t i = 1; i < parts.size(); ++i)
      out = function + "(" + out + ", " + parts[i] + ")";
    return out;
  }
  return Status(Code::kUnsupported,
                "size expression '" + std::string(py::str(e)) + "' uses " + kind);
}

}  // namespace backplane::fx
