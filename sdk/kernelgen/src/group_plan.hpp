// How the work-items of a group share rows or columns in a GPU schedule.
#pragma once

#include <backplane/kernelgen/kernel.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace backplane::kernelgen {

inline std::int64_t product(std::span<const std::int64_t> extents) {
  std::int64_t n = 1;
  for (const std::int64_t e : extents) n *= e;
  return n;
}

struct GroupPlan {
  // A group takes columns that lie side by side, and its lines of work-items share their elements;
  // else work-items share rows, which lie along the last loop axis.
  bool columns = false;
  std::int64_t group = 1;  // work-items
  std::int64_t items = 0;  // of a row: a power of two; 0: the whole group. Of a line of columns
  std::int64_t chunk = 1;  // elements of one access
  std::int64_t slots = 0;  // chunks that a work-item keeps in registers; 0: each pass reads again
};

// How well vectors run along an axis: memory next to each other, or the same everywhere.
std::int64_t lane_score(const Kernel& kernel, std::size_t axis);
// Whether the loop axes must be walked by one work-item, point by point.
bool is_serial(const Kernel& kernel);
// The axis that accesses of a plan run along.
inline std::size_t chunk_axis(const Kernel& kernel, const GroupPlan& plan) {
  return plan.columns ? kernel.outer_count - 1 : kernel.expressions.extents().size() - 1;
}
// Whether elements lie next to each other along `axis`, at distances that are known along others,
// and differ inside the loops.
bool lies_along(const Kernel& kernel, Expr offset, std::size_t axis);
// Whether rows are read in chunks, into registers, and by some of a group's work-items. Not in
// OpenCL C: a driver for CPUs (PoCL 3.1) lets work-items without an element store one.
inline bool has_words(Dialect dialect) { return dialect == Dialect::kCuda; }
// Nothing where each work-item computes a point of its own. `kept_bytes`: what a work-item keeps of
// each element that several passes need.
std::optional<GroupPlan> plan_group(const Kernel& kernel, Dialect dialect, const Schedule& schedule,
                                    std::int64_t kept_bytes);
// Groups to launch.
std::int64_t group_count(const Kernel& kernel, const GroupPlan& plan);

}  // namespace backplane::kernelgen
