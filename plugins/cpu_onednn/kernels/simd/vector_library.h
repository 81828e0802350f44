// Mathematics of vectors from the C library.
#pragma once

namespace backplane::onednn {

// The address of a function of glibc's libmvec (such as "_ZGVdN8v_atanf", within 4 units in the
// last place; vectors as the x86-64 vector function ABI passes them), or null where the C library
// of this machine has none: glibc has most of them from 2.35 on.
void* vector_library_symbol(const char* name);

}  // namespace backplane::onednn
