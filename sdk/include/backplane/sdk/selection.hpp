// Which elements come first, as PyTorch chooses among equals.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

namespace backplane::sdk {

// Brings the first `k` of an order to its begin, sorted, by the steps of PyTorch's topk on the CPU:
// which of several equals those are is what its algorithm makes of them.
template <class Less>
void select_as_topk(std::vector<std::int64_t>& order, std::int64_t k, const Less& less) {
  const auto begin = order.begin(), end = order.end();
  if (k == 0) return;
  if (k * 64 <= std::ssize(order)) {
    std::partial_sort(begin, begin + k, end, less);
  } else {
    std::nth_element(begin, begin + k - 1, end, less);
    std::sort(begin, begin + k - 1, less);
  }
}

}  // namespace backplane::sdk
