// Python's ways to the memory of a tensor that has none: PyTorch gives null for those, and a
// program would go on with it. Here they raise instead.
#pragma once

#include "core/base/status.h"

namespace backplane::record {

// Once per process; needs the GIL. Other tensors pay a test of one bit per call.
Status guard_escapes();

}  // namespace backplane::record
