// A compiled graph at one set of sizes: how large every value is, and where in the arenas it lies.
// Immutable: any number of calls read one at a time.
#pragma once

#include <cstdint>
#include <vector>

namespace backplane::runtime {

struct Plan {
  struct Partition {
    std::vector<std::uint64_t> input_bytes, input_offset;  // offset: of the view in its root
    std::uint64_t workspace_bytes = 0, workspace_offset = 0;
    std::vector<std::int64_t> dims;  // of all dim classes that its executable knows
  };
  std::vector<std::int64_t> class_values;
  std::vector<std::uint64_t> slot_bytes, slot_offset;  // offset: in the place's arena
  std::vector<std::uint64_t> place_bytes;
  std::vector<Partition> partitions;
};

}  // namespace backplane::runtime
