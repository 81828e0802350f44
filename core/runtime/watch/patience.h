// A word on the screen about a call into a plugin that takes long.
#pragma once

namespace backplane::runtime {

// Starts the thread that looks at the call board, once per process (a child of fork() has its own).
// Calls that are inside of a plugin for $BACKPLANE_PATIENCE seconds (10; 0: never) are told, and
// again whenever their time has doubled.
void start_patience();

}  // namespace backplane::runtime
