// Calls whose results nobody reads, and which of them run all the same.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/torch/record/tape.h"

namespace backplane::record {

// By call: whether an output follows from it, or it has an effect, as random draws have.
std::vector<bool> find_live(const Tape& tape, std::span<const ValueNumber> outputs);

// A result of each call before `call_count` that nobody reads but that may refuse the numbers it is
// given (an index out of range): a program with such a call raises, so they are to be computed.
std::vector<ValueNumber> find_unread_checks(const Tape& tape, std::span<const ValueNumber> outputs,
                                            std::size_t call_count);

}  // namespace backplane::record
