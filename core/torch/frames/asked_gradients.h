// What autograd is about to be asked for, and may be, where a frame breaks.
#pragma once

#include <string_view>
#include <vector>

#include "core/cpython/bytecode/py_ref.h"

namespace backplane::capture {
class World;
}

namespace backplane::call {

// Whether the call that the values on the stack, `slots`, are for, or the attribute that is about
// to be read of the topmost (empty: none), asks for the gradient of a tensor from which another of
// `state`, what the frame goes on with, has been computed. Both would be results of one node, which
// knows nothing of that.
bool asks_for_intermediate(const std::vector<cpython::Ref>& slots, std::string_view attribute,
                           const std::vector<cpython::Ref>& state);

// Whether a function with this code may do so later on: it names what asks.
bool may_ask_for_intermediate(PyCodeObject* code);

// Whether of what the frame goes on with a tensor is a view of what it does not go on with, and a
// function with this code can tell: it asks, or sets a hook or retains a gradient, from which a
// write parts views alone. Such a result is no view.
bool tells_view_without_base(PyCodeObject* code, const std::vector<cpython::Ref>& slots,
                             const std::vector<cpython::Ref>& state, const capture::World& world);

// Whether of what the frame goes on with a tensor has been computed from another.
bool holds_intermediate(const std::vector<cpython::Ref>& slots,
                        const std::vector<cpython::Ref>& state);

}  // namespace backplane::call
