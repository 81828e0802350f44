// The host's threads as a worker lends them to its plugin.
#pragma once

#include <cstddef>
#include <cstdint>

namespace backplane::runtime {

// Makes it what parallel_for of the host services runs on.
void install_thread_pool();
// How many threads the parent's pool has now.
void set_pool_threads(std::uint32_t count);

}  // namespace backplane::runtime
