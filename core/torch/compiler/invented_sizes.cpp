#include "core/torch/compiler/invented_sizes.h"

#include <array>

#include "core/torch/device/resized.h"

namespace backplane::compiler {

struct SizeInventor::Change {
  std::int64_t factor, step, step_per_symbol;
};

namespace {

constexpr std::size_t kEnough = 2;

}  // namespace

// None: these sizes are no other ones, or out of range.
std::optional<InventedSizes> SizeInventor::values_of(std::span<const std::size_t> chosen,
                                                     const Change& change) const {
  InventedSizes out;
  std::map<std::size_t, std::vector<std::int64_t>> sizes;  // by tensor
  for (std::size_t position = 0; position < chosen.size(); ++position) {
    const SizeSymbol& symbol = symbols_[chosen[position]];
    const std::int64_t value = symbol.value * change.factor + change.step +
                               change.step_per_symbol * static_cast<std::int64_t>(position);
    if (value == symbol.value || value < symbol.range.min) return std::nullopt;
    if (symbol.range.max != 0 && value > symbol.range.max) return std::nullopt;
    for (const auto& [tensor, dim] : symbol.dims)
      sizes.try_emplace(tensor, tensors_[tensor].sizes().vec())
          .first->second[static_cast<std::size_t>(dim)] = value;
    for (const std::size_t number : symbol.numbers) out.numbers[number] = value;
  }
  for (const auto& [tensor, changed] : sizes) {
    std::optional<at::Tensor> made = device::resized(tensors_[tensor], changed);
    if (!made) return std::nullopt;
    out.tensors.emplace(tensor, std::move(*made));
  }
  return out;
}

// Records until there are `enough`; gives why it first could not.
Result<std::string> SizeInventor::record_some(std::span<const std::size_t> chosen,
                                              std::size_t enough, const Record& record,
                                              std::vector<Sample>& out) const {
  // Larger ones first; a program with a largest size says no to them. Sizes that depend on each
  // other change together in one of the later ones.
  static constexpr std::array<Change, 8> kChanges{
      {{1, 1, 2}, {1, 4, 3}, {1, -1, -2}, {1, -2, -3}, {1, 1, 0}, {1, 3, 0}, {2, 0, 0}, {3, 0, 0}}};
  std::string reason = "no other size is in its range, or its strides have gaps";
  bool has_reason = false;
  const std::size_t before = out.size();
  for (const Change& change : kChanges) {
    if (out.size() - before >= enough) break;
    const auto invented = values_of(chosen, change);
    if (!invented) continue;
    Result<Sample> sample = record(*invented);
    if (sample.ok()) {
      out.push_back(std::move(*sample));
      continue;
    }
    if (sample.status().code() == Code::kCancelled) return sample.take_status();
    if (!has_reason) reason = sample.status().message();
    has_reason = true;
  }
  return out.size() > before ? std::string() : reason;
}

Result<std::vector<SizeInventor::Sample>> SizeInventor::samples(const Record& record,
                                                                const Note& note) const {
  std::vector<Sample> out;
  std::vector<std::size_t> all(symbols_.size()), changing;
  for (std::size_t s = 0; s < all.size(); ++s) all[s] = s;
  BP_ASSIGN_OR_RETURN(std::string reason, record_some(all, kEnough, record, out));
  if (reason.empty()) return out;
  for (const std::size_t s : all) {
    if (all.size() > 1) {
      BP_ASSIGN_OR_RETURN(reason, record_some(std::span(&s, 1), 1, record, out));
    }
    if (reason.empty())
      changing.push_back(s);
    else if (note)
      BP_RETURN_IF_ERROR(note(symbols_[s], reason));
  }
  if (changing.size() > 1) {
    BP_ASSIGN_OR_RETURN(reason, record_some(changing, kEnough, record, out));
  }
  return out;
}

}  // namespace backplane::compiler
