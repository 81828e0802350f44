#include "families.hpp"

#include <algorithm>
#include <string_view>

namespace backplane::kernels {

bool KernelFamilies::serves(const Member& member, const std::vector<std::string>& numbers) {
  for (std::size_t i = 0; i < numbers.size(); ++i)
    if (member.open[i] == kernelgen::kKept && member.numbers[i] != numbers[i]) return false;
  return true;
}

namespace {

kernelgen::NumberedText split(const kernelgen::Printed& kernel) {
  std::string text = kernel.text;
  if (const std::size_t at = text.find(kernel.entry); at != std::string::npos)
    text.replace(at, kernel.entry.size(), "BP_ENTRY");
  return kernelgen::split_numbers(text);
}

// `kernel` with its open numbers as arguments of `shared`.
KernelFamilies::Chosen pass_numbers(const kernelgen::Printed& shared,
                                    const kernelgen::Openings& open,
                                    const std::vector<std::string>& numbers,
                                    const kernelgen::Printed& kernel) {
  KernelFamilies::Chosen out{shared, {}};
  out.kernel.items = kernel.items;
  out.kernel.group = kernel.group;
  for (std::size_t i = 0; i < open.size(); ++i)
    if (open[i] == i) out.numbers.push_back(kernelgen::number_bits(numbers[i]));
  return out;
}

// Numbers that are not the same in all `members`, whose sizes stay: two that are equal in each are
// one.
kernelgen::Openings differing(const std::vector<kernelgen::NumberedText>& texts,
                              const std::vector<std::size_t>& members) {
  kernelgen::Openings open(texts[members[0]].numbers.size(), kernelgen::kKept);
  std::map<std::string, std::size_t> first_of;  // by the numbers of all members
  for (std::size_t i = 0; i < open.size(); ++i) {
    bool differs = false;
    std::string all;
    for (const std::size_t m : members) {
      differs = differs || texts[m].numbers[i] != texts[members[0]].numbers[i];
      all += texts[m].numbers[i] + ' ';
    }
    if (differs) open[i] = first_of.emplace(std::move(all), i).first->second;
  }
  return open;
}

}  // namespace

KernelFamilies::Chosen KernelFamilies::choose(std::uint64_t place,
                                              const kernelgen::Printed& kernel) {
  const kernelgen::NumberedText split = kernels::split(kernel);
  const std::lock_guard lock(mutex_);
  auto& members = members_[{place, split.pattern}];
  auto found = std::find_if(members.begin(), members.end(),
                            [&](const Member& m) { return serves(m, split.numbers); });
  if (found == members.end()) {
    Member made{split.numbers, kernelgen::Openings(split.numbers.size(), kernelgen::kKept), kernel};
    if (!members.empty()) {
      const Member& last = members.back();
      made.open = last.open;
      for (std::size_t i = 0; i < made.open.size(); ++i)
        if (last.numbers[i] != split.numbers[i]) made.open[i] = i;
      made.kernel = kernelgen::name_entry(kernelgen::open_numbers(split, made.open));
    }
    members.push_back(std::move(made));
    found = members.end() - 1;
  }
  return pass_numbers(found->kernel, found->open, split.numbers, kernel);
}

std::vector<KernelFamilies::Chosen> share_kernels(std::span<const kernelgen::Printed> kernels) {
  std::vector<kernelgen::NumberedText> texts;
  std::map<std::string_view, std::vector<std::size_t>> families;  // by pattern
  texts.reserve(kernels.size());
  for (const kernelgen::Printed& kernel : kernels) {
    texts.push_back(split(kernel));
    families[texts.back().pattern].push_back(texts.size() - 1);
  }
  std::vector<KernelFamilies::Chosen> out(kernels.size());
  for (const auto& [pattern, members] : families) {
    const kernelgen::Openings open = differing(texts, members);
    kernelgen::Printed shared = kernels[members[0]];
    if (std::any_of(open.begin(), open.end(), [](std::size_t o) { return o != kernelgen::kKept; }))
      shared = kernelgen::name_entry(kernelgen::open_numbers(texts[members[0]], open));
    for (const std::size_t m : members)
      out[m] = pass_numbers(shared, open, texts[m].numbers, kernels[m]);
  }
  return out;
}

}  // namespace backplane::kernels
