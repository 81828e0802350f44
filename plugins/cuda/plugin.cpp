#include <backplane/sdk/table.hpp>

#include "device.h"

BP_PLUGIN("cuda", "Backplane", "0.1.0", backplane::cuda::CudaDevice)
