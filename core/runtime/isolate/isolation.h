// Which plugins run in a worker: $BACKPLANE_ISOLATION, "process" for all or their names, separated
// by commas.
#pragma once

#include <string_view>

namespace backplane::runtime {

bool is_isolation_asked(std::string_view plugin);

}  // namespace backplane::runtime
