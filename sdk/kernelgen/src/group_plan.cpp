#include "group_plan.hpp"

#include <algorithm>
#include <numeric>

namespace backplane::kernelgen {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// What a group stores, and reads at the same element: it is stored by another work-item than reads
// it.
bool reads_what_it_stores(const Kernel& kernel) {
  const Expressions& e = kernel.expressions;
  for (std::size_t i = 0; i < e.size(); ++i) {
    const Node& n = e.node(static_cast<Expr>(i));
    if (n.op != Op::kLoad) continue;
    for (const Store& s : kernel.stores)
      if (s.tensor == static_cast<std::size_t>(n.index)) return true;
  }
  return false;
}

// Where its work-items read side by side what one alone would read with gaps, or where rows are too
// few for a work-item each.
bool shares_rows(const Kernel& kernel, Dialect dialect, std::int64_t points, std::int64_t row) {
  constexpr std::int64_t kShortest = 64, kFewPoints = 65536;
  // Where warps exchange registers, a row is less work to join.
  const std::int64_t shortest_dense = has_words(dialect) ? 32 : kShortest;
  const auto extents = kernel.expressions.extents();
  const std::size_t outer = kernel.outer_count, last = extents.size() - 1;
  const bool is_dense = outer != 0 && lane_score(kernel, last) > lane_score(kernel, outer - 1);
  if (row < shortest_dense || (row < kShortest && !is_dense)) return false;
  return points < kFewPoints || outer == 0 || (is_dense && extents[last] >= shortest_dense);
}
// Where memory lies along the last outer axis.
bool shares_columns(const Kernel& kernel, std::int64_t row) {
  constexpr std::int64_t kShortest = 16;
  const auto extents = kernel.expressions.extents();
  const std::size_t outer = kernel.outer_count, last = extents.size() - 1;
  return outer != 0 && row >= kShortest &&
         lane_score(kernel, outer - 1) > lane_score(kernel, last) && !reads_what_it_stores(kernel);
}

// Elements of one access: those that all tensors along the axis have side by side at all points.
std::int64_t chunk_along(const Kernel& kernel, std::size_t axis) {
  constexpr std::int64_t kBytes = 16, kMost = 8;
  const Expressions& e = kernel.expressions;
  std::int64_t least = kBytes, common = e.extents()[axis];
  bool any = false;
  const auto consider = [&](Expr offset, Storage storage) {
    if (!lies_along(kernel, offset, axis)) return;
    any = true;
    least = std::min(least, storage_bytes(storage));
    for (std::size_t a = 0; a < e.extents().size(); ++a)
      if (std::int64_t stride = 0; a != axis && e.stride(offset, a, stride))
        common = std::gcd(common, stride);
  };
  for (std::size_t i = 0; i < e.size(); ++i)
    if (const Node& n = e.node(static_cast<Expr>(i)); n.op == Op::kLoad)
      consider(n.a, static_cast<Storage>(n.integer));
  for (const Store& s : kernel.stores) consider(s.offset, s.storage);
  std::int64_t chunk = any ? std::min(kBytes / least, kMost) : 1;
  while (common % chunk != 0) chunk /= 2;
  return chunk;
}

// Work-items for a row of `length` that is read in each pass: a power of two, each with a few
// elements.
std::int64_t row_group(std::int64_t length, std::int64_t most) {
  constexpr std::int64_t kLeast = 32, kElements = 4;
  std::int64_t group = 1;
  while (group * 2 <= most && (group < kLeast || group * 2 <= length / kElements)) group *= 2;
  return group;
}

void share_row(const Kernel& kernel, const Schedule& schedule, std::int64_t points,
               std::int64_t chunks, std::int64_t kept_bytes, GroupPlan& plan) {
  constexpr std::int64_t kWarp = 32, kRegisters = 48, kMostElements = 32, kElements = 16,
                         kManyItems = 65536, kMostNodes = 8192, kGroup = 128;
  const auto nodes = static_cast<std::int64_t>(kernel.expressions.size());
  const std::int64_t elements =
      std::min({kMostElements, kRegisters * 4 / std::max<std::int64_t>(kept_bytes, 1),
                std::max(kMostNodes / nodes, plan.chunk)});
  std::int64_t items = 1;
  while (items < kWarp && items < chunks) items *= 2;
  const auto taken = [&] { return ceil_div(chunks, items); };
  if (taken() * plan.chunk > elements)
    while (items * 2 <= schedule.group_size && taken() * plan.chunk > std::min(elements, kElements))
      items *= 2;
  while (items * 2 <= schedule.group_size && points * items < kManyItems && taken() > 1) items *= 2;
  plan.items = items;
  plan.slots = taken() * plan.chunk <= elements ? taken() : 0;
  plan.group = std::max(items, std::min(kWarp, schedule.group_size));
  while (plan.group * 2 <= std::min(kGroup, schedule.group_size) && plan.group / items < points)
    plan.group *= 2;
}

}  // namespace

std::int64_t lane_score(const Kernel& kernel, std::size_t axis) {
  const Expressions& e = kernel.expressions;
  std::int64_t score = 0;
  const auto weigh = [&](Expr offset, std::int64_t good) {
    std::int64_t stride = 0;
    const bool known = e.stride(offset, axis, stride);
    score += known && stride == 1 ? good : known && stride == 0 ? 1 : -2 * good;
  };
  for (std::size_t i = 0; i < e.size(); ++i)
    if (const Node& n = e.node(static_cast<Expr>(i)); n.op == Op::kLoad) weigh(n.a, 2);
  for (const Store& s : kernel.stores)
    if (s.mode != Store::kNonZero) weigh(s.offset, 2);
  return score;
}

bool is_serial(const Kernel& kernel) {
  for (const Store& s : kernel.stores)
    if (s.mode == Store::kOrdered || s.mode == Store::kAdd) return true;
  for (std::size_t i = 0; i < kernel.expressions.size(); ++i) {
    const Node& n = kernel.expressions.node(static_cast<Expr>(i));
    if (n.op == Op::kReduce && static_cast<Reduction>(n.index) >= Reduction::kArgMax) return true;
  }
  return false;
}

bool lies_along(const Kernel& kernel, Expr offset, std::size_t axis) {
  const Expressions& e = kernel.expressions;
  bool in_loops = false;
  for (std::size_t a = 0; a < e.extents().size(); ++a) {
    std::int64_t stride = 0;
    if (!e.stride(offset, a, stride) || (a == axis && stride != 1)) return false;
    in_loops = in_loops || (a >= kernel.outer_count && stride != 0);
  }
  return in_loops;
}

std::optional<GroupPlan> plan_group(const Kernel& kernel, Dialect dialect, const Schedule& schedule,
                                    std::int64_t kept_bytes) {
  const auto extents = kernel.expressions.extents();
  const std::size_t outer = kernel.outer_count;
  const std::int64_t points = product(extents.subspan(0, outer)),
                     row = product(extents.subspan(outer));
  if (is_serial(kernel) || dialect == Dialect::kC11) return std::nullopt;
  GroupPlan plan;
  plan.columns = shares_columns(kernel, row);
  if (!plan.columns && !kernel.sliced && !shares_rows(kernel, dialect, points, row))
    return std::nullopt;
  if (has_words(dialect) && !reads_what_it_stores(kernel))
    plan.chunk = chunk_along(kernel, chunk_axis(kernel, plan));
  if (plan.columns) {
    constexpr std::int64_t kSide = 32;
    plan.group = schedule.group_size;
    plan.items = 1;
    while (plan.items < kSide && plan.items < points / plan.chunk) plan.items *= 2;
  } else if (schedule.unroll && !kernel.sliced && has_words(dialect)) {
    share_row(kernel, schedule, points, row / plan.chunk, kept_bytes, plan);
  } else {
    plan.group = row_group(row, schedule.group_size);
  }
  return plan;
}

std::int64_t group_count(const Kernel& kernel, const GroupPlan& plan) {
  const std::int64_t points = product(kernel.expressions.extents().subspan(0, kernel.outer_count));
  if (plan.columns) return ceil_div(points / plan.chunk, plan.items);
  return plan.items == 0 ? points : ceil_div(points * plan.items, plan.group);
}

}  // namespace backplane::kernelgen
