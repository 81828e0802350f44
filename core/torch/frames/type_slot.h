// A function of any signature as PyType_Slot holds it.
#pragma once

namespace backplane::call {

template <class Function>
void* slot(Function function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace backplane::call
