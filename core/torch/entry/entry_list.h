// The entries of one function, or of one frame, and why there are no more of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/flag_scope.h"
#include "core/torch/bridge/held_signals.h"
#include "core/torch/capture/capture.h"
#include "core/torch/entry/entry.h"

namespace backplane::call {

struct EntryLimits {
  std::size_t programs = 8;  // entries for several sizes may share one
  std::size_t failures = 3;
};

// `Kept`: an Entry, or what has one, by `entry_of`. Everything needs the GIL.
template <class Kept>
class EntryList {
 public:
  const std::vector<std::shared_ptr<Kept>>& all() const { return entries_; }

  // The entry that takes the call, which comes first from now on; null where none does.
  std::shared_ptr<Kept> find(const guards::CallArguments& call, guards::Registers& out_registers) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      // Held: another thread may drop the entries while a guard asks Python, or the call runs.
      std::shared_ptr<Kept> found = entries_[i];
      if (!entry_of(*found).check(call, out_registers)) continue;
      ++hits_;
      const auto first = entries_.begin();
      if (i > 0 && i < entries_.size() && entries_[i] == found)
        std::rotate(first, first + static_cast<std::ptrdiff_t>(i),
                    first + static_cast<std::ptrdiff_t>(i) + 1);
      return found;
    }
    return nullptr;
  }

  // Why no call is captured now; empty where one may be.
  std::string closed(const EntryLimits& limits) const {
    if (!given_up_.empty()) return given_up_;
    if (capturing_) return "called while it is being captured";
    if (std::string limit = find_limit(plain(), limits.programs); !limit.empty()) return limit;
    return capture::check_interpreter().message();
  }

  // What `make` captures, as the first entry. The list is closed meanwhile.
  Result<std::shared_ptr<Kept>> add(auto&& make) {
    Result<std::shared_ptr<Kept>> made = guarded(make);
    if (made.ok()) entries_.insert(entries_.begin(), *made);
    return made;
  }

  // What `make` captures, in the place of `old`.
  Result<std::shared_ptr<Kept>> replace(const Kept& old, auto&& make) {
    Result<std::shared_ptr<Kept>> made = guarded(make);
    if (!made.ok()) return made;
    const auto place =
        std::ranges::find_if(entries_, [&](const auto& kept) { return kept.get() == &old; });
    if (place == entries_.end())
      entries_.insert(entries_.begin(), *made);
    else
      *place = *made;
    return made;
  }

  // One more capture has failed; too many of them end all.
  void count_failure(const std::string& reason, const EntryLimits& limits) {
    if (++failures_ >= limits.failures) given_up_ = reason;
  }

  std::vector<const Entry*> plain() const {
    std::vector<const Entry*> out;
    for (const auto& kept : entries_) out.push_back(&entry_of(*kept));
    return out;
  }
  std::uint64_t hits() const { return hits_; }
  void show_refs(cpython::OwnedRefs& out) const {
    for (const auto& kept : entries_) out.show(kept);
  }

  void clear() {
    entries_.clear();
    given_up_.clear();
    failures_ = 0;
    hits_ = 0;
  }

 private:
  Result<std::shared_ptr<Kept>> guarded(auto&& make) {
    const FlagScope capturing(capturing_);
    const bridge::HeldSignals held;
    return make();
  }

  std::vector<std::shared_ptr<Kept>> entries_;  // the one used last comes first
  std::string given_up_;                        // no more captures, and why
  std::size_t failures_ = 0;
  std::uint64_t hits_ = 0;
  bool capturing_ = false;
};

}  // namespace backplane::call
