#include <backplane/sdk/table.hpp>

#include "device.h"

BP_PLUGIN("opencl", "Backplane", "0.1.0", backplane::opencl::ClDevice)
