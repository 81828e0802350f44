// Random numbers of the device: generators with the device's identity and the CPU's stream of
// numbers, since what draws runs on the CPU.
#pragma once

#include <ATen/core/Generator.h>

namespace backplane::device {

// Of an index, -1: of the current one. Made at the first question, never destroyed.
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator make_generator(c10::DeviceIndex index);
// The CPU generator behind one of the device; a CPU generator is its own.
at::Generator host_generator(const at::Generator& generator);

}  // namespace backplane::device
