// What torch asks of every device: the current one, streams, events, and the accelerator's hooks.
#pragma once

namespace backplane::device {

// Registers both with torch, once per process; the caller made sure that nobody else did.
void register_guard();
void register_hooks();

}  // namespace backplane::device
