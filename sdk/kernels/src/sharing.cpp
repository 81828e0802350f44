#include "sharing.hpp"

#include "families.hpp"

namespace backplane::kernels {

void SharedKernels::add(const LaunchList& list, const kernelgen::Printed& kernel,
                        std::string label) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back({list.launches(), list.launches()->size() - 1, kernel, std::move(label)});
}

void SharedKernels::resolve(Target& target) {
  const std::lock_guard lock(mutex_);
  // Nobody runs what was dropped when a later step failed.
  std::erase_if(waiting_, [](const Waiting& w) { return w.list.use_count() == 1; });
  std::vector<kernelgen::Printed> kernels;
  for (const Waiting& w : waiting_) kernels.push_back(w.kernel);
  const std::vector<KernelFamilies::Chosen> chosen = share_kernels(kernels);
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    Launch& launch = (*waiting_[i].list)[waiting_[i].place];
    for (const std::uint64_t number : chosen[i].numbers)
      launch.arguments.push_back(Argument::bits(number));
    launch.program =
        target.program(chosen[i].kernel.text, chosen[i].kernel.entry, waiting_[i].label);
  }
  waiting_.clear();
}

}  // namespace backplane::kernels
