// What autograd is about to be asked for where a frame breaks.
#pragma once

#include <string_view>
#include <vector>

#include "core/cpython/bytecode/py_ref.h"

namespace backplane::call {

// Whether the call that the values on the stack, `slots`, are for, or the attribute that is about
// to be read of the topmost (empty: none), asks for the gradient of a tensor from which another of
// `state`, what the frame goes on with, has been computed. Both would be results of one node, which
// knows nothing of that.
bool asks_for_intermediate(const std::vector<cpython::Ref>& slots, std::string_view attribute,
                           const std::vector<cpython::Ref>& state);

// Whether a function with this code may do so later on: it names what asks.
bool may_ask_for_intermediate(PyCodeObject* code);

// Whether a function with this code may set a hook on a tensor, or have it retain its gradient.
bool may_hook(PyCodeObject* code);

// Whether of what the frame goes on with a tensor is a view of what it does not go on with. Such a
// result is no view, so that a write after the break would not part it from its hooks.
bool holds_view_without_base(const std::vector<cpython::Ref>& slots,
                             const std::vector<cpython::Ref>& state);

// Whether of what the frame goes on with a tensor has been computed from another.
bool holds_intermediate(const std::vector<cpython::Ref>& slots,
                        const std::vector<cpython::Ref>& state);

}  // namespace backplane::call
