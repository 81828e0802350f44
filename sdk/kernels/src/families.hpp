// Kernels of one executable at different sizes. The first sizes get texts with their numbers in
// them; where other sizes give the same text but for numbers, these become arguments, and no
// further size builds anything.
#pragma once

#include <backplane/kernelgen/numbers.hpp>

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace backplane::kernels {

class KernelFamilies {
 public:
  struct Chosen {
    kernelgen::Printed kernel;
    std::vector<std::uint64_t> numbers;  // its last arguments
  };
  // `place` names one launch of the executable, whatever the sizes are.
  Chosen choose(std::uint64_t place, const kernelgen::Printed& kernel);

 private:
  struct Member {
    std::vector<std::string> numbers;
    kernelgen::Openings open;
    kernelgen::Printed kernel;
  };
  static bool serves(const Member& member, const std::vector<std::string>& numbers);

  std::mutex mutex_;
  std::map<std::pair<std::uint64_t, std::string>, std::vector<Member>> members_;  // by pattern
};

// Kernels of one executable whose sizes stay: texts that differ in numbers alone become one kernel
// with these as arguments, so that fewer are built.
std::vector<KernelFamilies::Chosen> share_kernels(std::span<const kernelgen::Printed> kernels);

}  // namespace backplane::kernels
