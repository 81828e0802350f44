// Where aten.index and its kin read or write: what the index tensors of one step stand for.
#pragma once

#include <backplane/sdk/program.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace backplane::sdk {

// Operands: self, then one index (or none) per dim. The indexed dims give way to the dims that the
// indices broadcast to: in their place where they are neighbours, else in front.
struct IndexedDims {
  std::vector<std::size_t> dims, operands;  // the indexed dims, and the step's operand of each
  std::vector<std::int64_t> shared;         // what the indices broadcast to
  std::size_t place = 0;                    // of the shared dims among those that are left

  explicit IndexedDims(const StepContext& context) {
    const NodeView node = context.node();
    for (std::size_t i = 0; i < node.list_count(); ++i) {
      const std::size_t operand = node.list_first() + i;
      if (!context.has_operand(operand)) continue;
      dims.push_back(i);
      operands.push_back(operand);
      const auto& own = context.operand(operand).dims;
      if (own.size() > shared.size()) shared.insert(shared.begin(), own.size() - shared.size(), 1);
      for (std::size_t k = 0; k < own.size(); ++k) {
        std::int64_t& s = shared[shared.size() - own.size() + k];
        if (s == 1) s = own[k];
      }
    }
    if (!dims.empty() && dims.back() - dims.front() + 1 == dims.size()) place = dims.front();
  }
  bool has(std::size_t dim) const { return std::find(dims.begin(), dims.end(), dim) != dims.end(); }
};

}  // namespace backplane::sdk
