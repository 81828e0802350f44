#include "families.h"

#include <algorithm>

namespace backplane::opencl {

bool KernelFamilies::serves(const Member& member, const std::vector<std::string>& numbers) {
  for (std::size_t i = 0; i < numbers.size(); ++i)
    if (!member.open[i] && member.numbers[i] != numbers[i]) return false;
  return true;
}

KernelFamilies::Chosen KernelFamilies::choose(std::uint64_t place,
                                              const kernelgen::Printed& kernel) {
  std::string text = kernel.text;
  if (const std::size_t at = text.find(kernel.entry); at != std::string::npos)
    text.replace(at, kernel.entry.size(), "BP_ENTRY");
  kernelgen::NumberedText split = kernelgen::split_numbers(text);
  const std::lock_guard lock(mutex_);
  auto& members = members_[{place, split.pattern}];
  auto found = std::find_if(members.begin(), members.end(),
                            [&](const Member& m) { return serves(m, split.numbers); });
  if (found == members.end()) {
    Member made{split.numbers, std::vector<bool>(split.numbers.size(), false), kernel};
    if (!members.empty()) {
      const Member& last = members.back();
      made.open = last.open;
      for (std::size_t i = 0; i < made.open.size(); ++i)
        if (last.numbers[i] != split.numbers[i]) made.open[i] = true;
      made.kernel = kernelgen::name_entry(kernelgen::open_numbers(split, made.open));
    }
    members.push_back(std::move(made));
    found = members.end() - 1;
  }
  Chosen out{found->kernel, {}};
  out.kernel.items = kernel.items;
  out.kernel.group = kernel.group;
  for (std::size_t i = 0; i < found->open.size(); ++i)
    if (found->open[i]) out.numbers.push_back(kernelgen::number_bits(split.numbers[i]));
  return out;
}

}  // namespace backplane::opencl
