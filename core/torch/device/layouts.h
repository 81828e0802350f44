// Tensors that the torch device does not have: sparse and quantized ones.
#pragma once

namespace backplane::device {

// Says so, in a sentence, where PyTorch would list the keys of its dispatcher.
void register_missing_layouts();

}  // namespace backplane::device
