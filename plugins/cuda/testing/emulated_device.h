// What the parts of the emulated device share.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string_view>

#include "plugins/cuda/api.h"

namespace backplane::cuda {

// The code that this call of `entry` is to answer.
Code planned_failure(std::string_view entry);
// Runs after what the stream was given before.
void enqueue(StreamHandle stream, std::function<void()> work);
// Where the bytes of a device address are; other addresses are the host's.
std::byte* real_address(const void* address);

// A number that an environment variable says.
int number_of(const char* variable, int otherwise);
// Gone when the process ends.
const std::filesystem::path& scratch_folder();
// What stands before a library of kernels and its size, in what NVRTC builds and the driver loads.
constexpr std::string_view kMagic = "emulated";

}  // namespace backplane::cuda
