// Operators that PyTorch asks of this kind of device, or whose schema hides what they do, as
// compositions of others.
#pragma once

namespace backplane::device {

void register_composites();
void register_autocast();

}  // namespace backplane::device
