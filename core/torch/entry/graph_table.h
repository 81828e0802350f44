// A traced graph as a table: opcode, name, target, args.
#pragma once

#include <string>
#include <vector>

#include "core/torch/record/recorder.h"

namespace backplane::call {

// Of the program's forward. `sources`: where the inputs come from.
std::string graph_table(const record::Recorded& recorded, const std::vector<std::string>& sources);

}  // namespace backplane::call
