// For drivers that build texts at run time: which kernels are known, those to be built next, and
// how they are built together.
#pragma once

#include <backplane/kernels/target.hpp>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace backplane::kernels {

// Parts that take about the same time to build: that goes with the length of a text. The same each
// time, because caches know a program by its text. `Kernel` has `text()`.
template <class Kernel>
std::vector<std::vector<Kernel>> deal(std::vector<Kernel> kernels, std::size_t parts) {
  // A builder starts in the time of some kernels; each costs about that much text beside its own.
  constexpr std::size_t kLeastKernels = 4, kKernelCharacters = 1000;
  const std::size_t count = std::min(parts, kernels.size() / kLeastKernels);
  if (count < 2) return {std::move(kernels)};
  std::stable_sort(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) {
    return a->text().size() > b->text().size();
  });
  std::vector<std::vector<Kernel>> out(count);
  std::vector<std::size_t> sizes(count);
  for (auto& kernel : kernels) {
    const auto least = std::min_element(sizes.begin(), sizes.end());
    *least += kernel->text().size() + kKernelCharacters;
    out[static_cast<std::size_t>(least - sizes.begin())].push_back(std::move(kernel));
  }
  return out;
}

// Programs by their texts. P: a Program made of text, entry and label, which has them as answers.
template <class P>
class ProgramTable {
 public:
  using Kernels = std::vector<std::shared_ptr<P>>;

  std::shared_ptr<P> find(const std::string& text, const std::string& entry,
                          const std::string& label) {
    const std::lock_guard lock(mutex_);
    auto& known = programs_[text];
    if (known == nullptr) {
      known = std::make_shared<P>(text, entry, label);
      pending_.push_back(known);
    }
    return known;
  }
  // What was asked for since the last time.
  Kernels take_pending() {
    const std::lock_guard lock(mutex_);
    return std::exchange(pending_, {});
  }
  // `build(kernels)` answers a Result; `finish(kernel, what was built or null, status)` hears it
  // for each, and answers what is to be said of that one. What does not build together is built one
  // by one, so that those that build are not lost and the message names the one that fails, which
  // is asked for anew the next time.
  template <class Build, class Finish>
  Status build(std::span<const std::shared_ptr<P>> kernels, Build&& build, Finish&& finish) {
    Status first;
    const auto heard = [&](const std::shared_ptr<P>& kernel, auto* built, const Status& status) {
      const Status said = finish(*kernel, built, status);
      if (said.ok()) return;
      if (first.ok()) first = said;
      const std::lock_guard lock(mutex_);
      programs_.erase(kernel->text());
    };
    {
      auto whole = build(kernels);
      if (whole.ok() || kernels.size() == 1) {
        const Status status = whole.ok() ? Status() : whole.status();
        for (const auto& kernel : kernels) heard(kernel, whole.ok() ? &*whole : nullptr, status);
        return first;
      }
    }
    for (const auto& kernel : kernels) {
      auto one = build(std::span(&kernel, 1));
      heard(kernel, one.ok() ? &*one : nullptr, one.ok() ? Status() : one.status());
    }
    return first;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    programs_.clear();
    pending_.clear();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<P>> programs_;  // by text
  Kernels pending_;
};

// Some of the kernels' labels, for messages.
template <class Kernels>
std::string labels_of(const Kernels& kernels) {
  constexpr std::size_t kEnough = 200;
  std::string labels;
  for (const auto& kernel : kernels)
    if (labels.size() < kEnough) labels += (labels.empty() ? "" : ", ") + kernel->label();
  return labels;
}

// The source line that a compiler's log names first beside an error, as "…:LINE:COLUMN: error" or
// "…(LINE): error", with words around it; empty where it names none.
std::string failing_line(const std::string& log, const std::string& source);

// What the host's cache keeps of them, with a check sum before it: what is torn is not answered.
void put_sealed(const std::string& key, const std::string& content);
std::string get_sealed(const std::string& key);  // empty where there is nothing whole
// A key for whatever is made of `text`, which names all that it depends on.
std::string sealed_key(const std::string& prefix, const std::string& text);

// Numbers that kernels write for what they find wrong while they run.
class FaultLabels {
 public:
  // The number of the nodes that `label` names; not 0.
  std::uint32_t number_of(const std::string& label);
  // What a number that a kernel wrote says; ok for 0.
  Status outcome(std::uint32_t number);

 private:
  std::mutex mutex_;
  std::vector<std::string> labels_;
};

}  // namespace backplane::kernels
