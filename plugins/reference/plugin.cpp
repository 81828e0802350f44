#include <backplane/sdk/table.hpp>

#include "device.h"

#if defined(BACKPLANE_REFERENCE_MINIMAL)
BP_PLUGIN("reference_minimal", "Backplane", "0.1.0", backplane::reference::MinimalDevice)
#else
BP_PLUGIN("reference", "Backplane", "0.1.0", backplane::reference::ReferenceDevice)
#endif
