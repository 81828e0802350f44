// Other sizes than those of a call: what a program makes of them shows which of its numbers are
// sizes, before a second call has come.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/ir/generalize.h"

namespace backplane::compiler {

inline constexpr std::int64_t kSmallestInvented = 2;  // 0 and 1 are often another program

struct SizeRange {
  std::int64_t min = kSmallestInvented, max = 0;  // max 0: any
};

// Sizes that are equal now, and are taken to be equal in every call.
struct SizeSymbol {
  std::int64_t value = 0;
  SizeRange range;
  bool is_required = false;  // the user said that it changes
  std::string text;
  std::vector<std::pair<std::size_t, std::int64_t>> dims;  // tensor, dim
  std::vector<std::size_t> numbers;                        // arguments
};

struct InventedSizes {
  std::map<std::size_t, at::Tensor> tensors;  // by position among SizeInventor's
  std::map<std::size_t, std::int64_t> numbers;
};

class SizeInventor {
 public:
  using Sample = std::shared_ptr<const ir::FlatGraph>;
  // The program at these sizes. kCancelled ends all; whatever else it refuses is no sample.
  using Record = std::function<Result<Sample>(const InventedSizes&)>;
  // Hears of a symbol that stays as it is, and why. What it refuses ends all.
  using Note = std::function<Status(const SizeSymbol&, const std::string& reason)>;

  SizeInventor(std::vector<at::Tensor> tensors, std::vector<SizeSymbol> symbols)
      : tensors_(std::move(tensors)), symbols_(std::move(symbols)) {}

  // Samples of all symbols changed together; where there are none, of those that change by
  // themselves.
  Result<std::vector<Sample>> samples(const Record& record, const Note& note) const;

 private:
  struct Change;
  std::optional<InventedSizes> values_of(std::span<const std::size_t> chosen,
                                         const Change& change) const;
  Result<std::string> record_some(std::span<const std::size_t> chosen, std::size_t enough,
                                  const Record& record, std::vector<Sample>& out) const;

  std::vector<at::Tensor> tensors_;
  std::vector<SizeSymbol> symbols_;
};

}  // namespace backplane::compiler
