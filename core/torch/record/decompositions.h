// Operators taken apart above autograd, so that forward and backward see the parts: those whose
// only form is private to one CPU library, and those that write arguments without saying so.
#pragma once

#include <torch/library.h>

namespace backplane::record {

// Into a library for "aten" on kDecomposeKey.
void register_decompositions(torch::Library& library);

}  // namespace backplane::record
