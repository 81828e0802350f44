// Which plugins run in a worker: $BACKPLANE_ISOLATION, "process" for all or their names, separated
// by commas; and those that the program asked for.
#pragma once

#include <string>
#include <string_view>

namespace backplane::runtime {

bool is_isolation_asked(std::string_view plugin);
// Counts where the plugin is loaded later.
void ask_for_isolation(std::string plugin);

}  // namespace backplane::runtime
