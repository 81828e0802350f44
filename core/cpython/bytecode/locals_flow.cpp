#include "core/cpython/bytecode/locals_flow.h"

#include <opcode.h>

#include <algorithm>
#include <utility>

#include "core/cpython/bytecode/opcodes.h"

namespace backplane::cpython {

namespace {

std::vector<std::int32_t> handlers_of(const Code& code) {
  std::vector<std::int32_t> handlers(code.instructions.size(), kNoTarget);
  for (const ExceptionRange& range : code.exceptions)
    for (std::int32_t i = range.begin; i < range.end; ++i)
      handlers[static_cast<std::size_t>(i)] = range.target;
  return handlers;
}

bool add_all(LocalSet& to, const LocalSet& from) {
  bool changed = false;
  for (std::size_t i = 0; i < to.size(); ++i)
    if (from[i] && !to[i]) to[i] = changed = true;
  return changed;
}

bool keep_common(LocalSet& to, const LocalSet& from) {
  bool changed = false;
  for (std::size_t i = 0; i < to.size(); ++i)
    if (to[i] && !from[i]) {
      to[i] = false;
      changed = true;
    }
  return changed;
}

}  // namespace

std::vector<LocalSet> find_live_locals(const Code& code, std::size_t local_count) {
  const std::size_t count = code.instructions.size();
  const std::vector<std::int32_t> handlers = handlers_of(code);
  std::vector<LocalSet> live(count + 1, LocalSet(local_count));
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = count; i-- > 0;) {
      const Instruction& it = code.instructions[i];
      LocalSet now = ends_flow(it.opcode) ? LocalSet(local_count) : live[i + 1];
      if (it.target != kNoTarget) add_all(now, live[static_cast<std::size_t>(it.target)]);
      if (uses_local(it.opcode) && it.opcode != MAKE_CELL)
        now[static_cast<std::size_t>(it.argument)] = it.opcode != STORE_FAST;
      if (handlers[i] != kNoTarget) add_all(now, live[static_cast<std::size_t>(handlers[i])]);
      changed = add_all(live[i], now) || changed;
    }
  }
  live.pop_back();
  return live;
}

BoundLocals find_bound_locals(const Code& code, const LocalSet& at_start) {
  const std::size_t count = code.instructions.size();
  const std::vector<std::int32_t> handlers = handlers_of(code);
  const std::vector<std::vector<Slot>> slots = find_slots(code);
  BoundLocals bound{std::vector<LocalSet>(count, LocalSet(at_start.size(), true)),
                    std::vector<LocalSet>(count, LocalSet(at_start.size()))};
  std::vector<bool> seen(count);
  std::vector<std::size_t> open{0};
  if (count == 0) return bound;
  bound.always[0] = bound.sometimes[0] = at_start;
  const auto reach = [&](std::size_t at, const LocalSet& always, const LocalSet& sometimes) {
    if (at >= count) return;
    const bool fewer = keep_common(bound.always[at], always);
    const bool more = add_all(bound.sometimes[at], sometimes);
    if (!seen[at] || fewer || more) open.push_back(at);
    seen[at] = true;
  };
  while (!open.empty()) {
    const std::size_t at = open.back();
    open.pop_back();
    const Instruction& it = code.instructions[at];
    LocalSet always = bound.always[at], sometimes = bound.sometimes[at];
    if (handlers[at] != kNoTarget) reach(static_cast<std::size_t>(handlers[at]), always, sometimes);
    const auto local = static_cast<std::size_t>(it.argument);
    if (it.opcode == STORE_FAST || it.opcode == MAKE_CELL) {
      // An inlined comprehension puts back what it has found, a NULL as well.
      const bool may_be_null =
          it.opcode == STORE_FAST && !slots[at].empty() && slots[at].back() != Slot::kValue;
      always[local] = !may_be_null;
      sometimes[local] = true;
    }
    if (it.opcode == DELETE_FAST || clears_local(it.opcode))
      always[local] = sometimes[local] = false;
    if (it.target != kNoTarget) reach(static_cast<std::size_t>(it.target), always, sometimes);
    if (!ends_flow(it.opcode)) reach(at + 1, always, sometimes);
  }
  return bound;
}

std::vector<Slot> slots_after(const Instruction& it, std::vector<Slot> before, bool jumped) {
  const int argument = it.opcode >= HAVE_ARGUMENT ? it.argument : 0;
  const int effect = PyCompile_OpcodeStackEffectWithJump(it.opcode, argument, jumped ? 1 : 0);
  const auto depth = static_cast<std::size_t>(
      std::max<std::int64_t>(0, static_cast<std::int64_t>(before.size()) + effect));
  if (clears_local(it.opcode)) {
    before.push_back(Slot::kEither);
    return before;
  }
  if (loads_method(it.opcode, it.argument)) {
    before.resize(before.size() -
                  static_cast<std::size_t>(plain_load(it.opcode, it.argument).taken));
    before.resize(before.size() + 2, Slot::kEither);
    return before;
  }
  switch (it.opcode) {
    case PUSH_NULL:
      before.push_back(Slot::kNull);
      return before;
    case COPY:
      before.push_back(before[before.size() - static_cast<std::size_t>(it.argument)]);
      return before;
    case SWAP:
      std::swap(before.back(), before[before.size() - static_cast<std::size_t>(it.argument)]);
      return before;
    case LOAD_GLOBAL:
      if (it.argument & 1) before.push_back(Slot::kNull);
      before.push_back(Slot::kValue);
      return before;
#ifdef PRECALL
    case PRECALL:  // CPython's compiler counts the arguments here; they go with the CALL
      return before;
#endif
    case CALL:
      before.resize(before.size() - static_cast<std::size_t>(it.argument) - 1);
      before.back() = Slot::kValue;
      return before;
    case CALL_FUNCTION_EX:
      before.resize(depth, Slot::kValue);
      if (!before.empty()) before.back() = Slot::kValue;
      return before;
    default:
      break;
  }
  before.resize(depth, Slot::kValue);
  return before;
}

std::vector<std::vector<Slot>> find_slots(const Code& code) {
  const std::size_t count = code.instructions.size();
  std::vector<std::vector<Slot>> slots(count);
  std::vector<bool> seen(count);
  std::vector<const ExceptionRange*> handler(count, nullptr);
  for (const ExceptionRange& range : code.exceptions)
    for (std::int32_t i = range.begin; i < range.end; ++i)
      handler[static_cast<std::size_t>(i)] = &range;
  std::vector<std::pair<std::size_t, std::vector<Slot>>> open;
  open.emplace_back(0, std::vector<Slot>());
  while (!open.empty()) {
    auto [at, now] = std::move(open.back());
    open.pop_back();
    while (at < count && !seen[at]) {
      seen[at] = true;
      slots[at] = now;
      const Instruction& it = code.instructions[at];
      if (const ExceptionRange* range = handler[at]) {
        std::vector<Slot> in_handler = now;
        in_handler.resize(static_cast<std::size_t>(range->depth), Slot::kValue);
        in_handler.resize(in_handler.size() + (range->push_lasti ? 2 : 1), Slot::kValue);
        open.emplace_back(static_cast<std::size_t>(range->target), std::move(in_handler));
      }
      if (it.target != kNoTarget)
        open.emplace_back(static_cast<std::size_t>(it.target), slots_after(it, now, true));
      if (ends_flow(it.opcode)) break;
      now = slots_after(it, std::move(now), false);
      ++at;
    }
  }
  return slots;
}

}  // namespace backplane::cpython
