// A hash of memory that tells a change of its content; no more is promised than for a checksum.
#pragma once

#include <cstddef>
#include <cstdint>

namespace backplane {

// Any change of one word shows, others all but surely. Runs at the speed of the caches; the answer
// holds in this process alone.
std::uint64_t content_hash(const void* memory, std::size_t bytes);

}  // namespace backplane
