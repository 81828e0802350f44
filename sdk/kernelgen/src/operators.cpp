#include <unordered_map>

#include "operator_support.hpp"

namespace backplane::kernelgen {

std::vector<const Operator*> operators() {
  std::vector<const Operator*> all;
  for (const auto table : {arithmetic_operators(), activation_operators(), row_operators()})
    for (const Operator& op : table) all.push_back(&op);
  return all;
}

const Operator* find_operator(std::string_view name) {
  static const auto all = [] {
    std::unordered_map<std::string_view, const Operator*> map;
    for (const Operator* op : operators()) map.emplace(op->name, op);
    return map;
  }();
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace backplane::kernelgen
