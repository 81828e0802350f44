// Launches of an executable whose sizes stay, until it is known which of its kernels become one.
#pragma once

#include <backplane/kernelgen/kernel.hpp>

#include <mutex>

#include "launch.hpp"

namespace backplane::kernels {

class SharedKernels {
 public:
  // The last launch of `list` waits for its program.
  void add(const LaunchList& list, const kernelgen::Printed& kernel, std::string label);
  // Gives all that wait their programs and the numbers that these want.
  void resolve(Target& target);

 private:
  struct Waiting {
    std::shared_ptr<std::vector<Launch>> list;
    std::size_t place;
    kernelgen::Printed kernel;
    std::string label;
  };
  std::mutex mutex_;
  std::vector<Waiting> waiting_;
};

}  // namespace backplane::kernels
