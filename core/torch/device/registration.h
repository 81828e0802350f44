// Takes torch's one slot for a device of another package, under the name "backplane".
#pragma once

#include "core/base/status.h"

namespace backplane::device {

// Once per process; later calls answer as the first. Fails, having touched nothing, where another
// package has the slot. Renaming and the Python module are left to the caller.
Status register_device();
bool is_registered();

}  // namespace backplane::device
