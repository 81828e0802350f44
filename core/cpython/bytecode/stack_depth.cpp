#include <opcode.h>

#include <algorithm>
#include <utility>

#include "core/cpython/bytecode/code.h"
#include "core/cpython/bytecode/opcodes.h"

namespace backplane::cpython {

namespace {
constexpr int kLargestStack = 1 << 20;
}  // namespace

Result<StackDepths> find_stack_depths(const Code& code) {
  const std::size_t count = code.instructions.size();
  StackDepths depths{std::vector<int>(count, -1), 0};
  std::vector<const ExceptionRange*> handler(count, nullptr);
  for (const ExceptionRange& range : code.exceptions)
    for (std::int32_t i = range.begin; i < range.end; ++i)
      handler[static_cast<std::size_t>(i)] = &range;

  std::vector<std::pair<std::size_t, int>> open{{0, 0}};
  const auto go_on_at = [&](std::int32_t target, int depth) {
    open.emplace_back(static_cast<std::size_t>(target), depth);
    depths.maximum = std::max(depths.maximum, depth);
  };
  while (!open.empty()) {
    auto [at, depth] = open.back();
    open.pop_back();
    // A join may be reached with several depths behind dead handlers; the largest counts.
    while (at < count && depths.before[at] < depth) {
      depths.before[at] = depth;
      const Instruction& instruction = code.instructions[at];
      if (const ExceptionRange* range = handler[at])
        go_on_at(range->target, range->depth + (range->push_lasti ? 1 : 0) + 1);
      const int argument = instruction.opcode >= HAVE_ARGUMENT ? instruction.argument : 0;
      if (instruction.target != kNoTarget) {
        const int effect = PyCompile_OpcodeStackEffectWithJump(instruction.opcode, argument, 1);
        if (effect == PY_INVALID_STACK_EFFECT)
          return Status(backplane::Code::kDataCorrupt, "Unknown jump in the bytecode.");
        go_on_at(instruction.target, depth + effect);
      }
      const int effect = PyCompile_OpcodeStackEffectWithJump(instruction.opcode, argument, 0);
      if (effect == PY_INVALID_STACK_EFFECT)
        return Status(backplane::Code::kDataCorrupt,
                      "Unknown opcode " + std::to_string(instruction.opcode) + ".");
      depth += effect;
      depths.maximum = std::max(depths.maximum, depth);
      if (depths.maximum > kLargestStack)
        return Status(backplane::Code::kDataCorrupt, "A loop of the bytecode grows the stack.");
      if (ends_flow(instruction.opcode)) break;
      ++at;
    }
  }
  return depths;
}

}  // namespace backplane::cpython
