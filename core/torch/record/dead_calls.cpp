#include "core/torch/record/dead_calls.h"

#include <algorithm>

#include "core/torch/record/operator_info.h"

namespace backplane::record {

namespace {

bool is_integer(const Tape& tape, ValueNumber number) {
  return number != kNoValue && at::isIntegralType(tape.values[number].meta.scalar_type(),
                                                  /*includeBool=*/false);
}

bool may_refuse(const Tape& tape, const Call& call) {
  const auto is_integer_value = [&](ValueNumber number) { return is_integer(tape, number); };
  switch (call.info->refused_values) {
    case RefusedValues::kNone:
      return false;
    case RefusedValues::kOfIntegerOperands:
      return std::ranges::any_of(call.operands, is_integer_value);
    case RefusedValues::kOfIntegerResults:
      return std::ranges::any_of(call.results, is_integer_value);
    case RefusedValues::kAny:
      return true;
  }
  return true;
}

// Calls from the last to the first; `must_run` is asked of those that nobody reads.
template <class MustRun>
std::vector<bool> walk(const Tape& tape, std::span<const ValueNumber> outputs,
                       const MustRun& must_run) {
  std::vector<bool> read(tape.values.size(), false), live(tape.calls.size(), false);
  for (const ValueNumber output : outputs)
    if (output != kNoValue) read[output] = true;
  for (std::size_t i = tape.calls.size(); i-- > 0;) {
    const Call& call = tape.calls[i];
    // A random draw that nobody reads still moves the stream of numbers on.
    live[i] =
        call.info->is_random || call.results.empty() ||
        std::ranges::any_of(
            call.results, [&](ValueNumber result) { return result != kNoValue && read[result]; }) ||
        must_run(i);
    if (!live[i]) continue;
    for (const ValueNumber operand : call.operands)
      if (operand != kNoValue) read[operand] = true;
  }
  return live;
}

}  // namespace

std::vector<bool> find_live(const Tape& tape, std::span<const ValueNumber> outputs) {
  return walk(tape, outputs, [](std::size_t /*call*/) { return false; });
}

std::vector<ValueNumber> find_unread_checks(const Tape& tape, std::span<const ValueNumber> outputs,
                                            std::size_t call_count) {
  std::vector<ValueNumber> found;
  walk(tape, outputs, [&](std::size_t i) {
    const Call& call = tape.calls[i];
    if (i >= call_count || !may_refuse(tape, call)) return false;
    const auto result =
        std::ranges::find_if(call.results, [](ValueNumber one) { return one != kNoValue; });
    if (result == call.results.end()) return false;
    found.push_back(*result);
    return true;
  });
  return found;
}

}  // namespace backplane::record
